"""Bytes in the Redis tier: who may store what, what is stored, and who is charged for it.

Owns the reservations, the charges and the order in which a tenant's blocks leave; the values themselves are written
and read elsewhere, under a reservation. All decisions are taken by Redis in Lua, so any number of writers on any
number of nodes keep ``used + pending <= limit`` at every moment (I5).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis

from tiered.cluster import scripts
from tiered.cluster.connection import command, translated
from tiered.cluster.keys import Keys
from tiered.types import BlockHash, TenantId


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    """size_bytes is what Redis will hold: header and payload. depth: blocks before this one in its prefix."""

    block_hash: BlockHash
    tenant: TenantId
    size_bytes: int
    depth: int


class ReserveAnswer(enum.IntEnum):
    """The numbers are reserve.lua's."""

    RESERVED = 1
    RESERVED_AFTER_EVICTING_OWN = 2
    ALREADY_THERE = 3
    PENDING_ELSEWHERE = 4
    REFUSED_QUOTA = 5
    REFUSED_FULL = 6

    @property
    def reserved(self) -> bool:
        return self in (ReserveAnswer.RESERVED, ReserveAnswer.RESERVED_AFTER_EVICTING_OWN)


@dataclass(frozen=True, slots=True)
class RedisUsage:
    used_bytes: int
    pending_bytes: int
    blocks: int


class RedisLedger:
    """The shared books of one partition. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def reserve(self, requests: Sequence[ReserveRequest], *, ttl_s: float) -> list[ReserveAnswer]:
        """Set bytes aside for each value, in order; a reservation not committed within ttl_s ends by itself."""
        rows = [(r.block_hash, r.tenant, r.size_bytes, r.depth) for r in requests]
        answers = scripts.reserve(self._client, self._keys, rows, ttl_ms=max(1, round(ttl_s * 1000)))
        return [ReserveAnswer(answer) for answer in answers]

    def commit(self, items: Sequence[tuple[BlockHash, TenantId]]) -> list[bool]:
        """The reserved values are written: charge them and let them be found.

        False: not committed, because the reservation ended or the value is not of the reserved size; nothing of it is
        left then that this writer would have to delete.
        """
        return scripts.commit(self._client, self._keys, items)

    def abort(self, items: Sequence[tuple[BlockHash, TenantId]]) -> int:
        """Give reservations back; returns how many there were."""
        return scripts.abort(self._client, self._keys, items)

    def touch(self, hashes: Sequence[BlockHash], tenant: TenantId) -> int:
        """Mark blocks as used now, given in prefix order: of one prefix the deeper blocks leave first."""
        return scripts.touch(self._client, self._keys, hashes, tenant) if hashes else 0

    def remove(self, hashes: Sequence[BlockHash]) -> int:
        """Forget values that proved corrupt or lost, and their charge; returns how many were charged."""
        return scripts.remove(self._client, self._keys, hashes)

    def usage(self) -> dict[TenantId, RedisUsage]:
        """Per tenant. The bytes are of one moment, the block counts of the next."""
        fields = self._usage_fields()
        tenants = sorted({TenantId(name[2:]) for name in fields if name[1:2] == ":"})
        with translated(), self._client.pipeline(transaction=False) as pipeline:
            for tenant in tenants:
                command(pipeline, "ZCARD", self._keys.tenant_blocks(tenant))
            blocks: list[int] = pipeline.execute()
        return {
            tenant: RedisUsage(fields.get(f"u:{tenant}", 0), fields.get(f"p:{tenant}", 0), count)
            for tenant, count in zip(tenants, blocks, strict=True)
        }

    def total(self) -> RedisUsage:
        """Of the whole partition; the bytes are kept as sums of their own, so they can be checked against usage()."""
        fields = self._usage_fields()
        blocks = sum(usage.blocks for usage in self.usage().values())
        return RedisUsage(fields.get("U", 0), fields.get("P", 0), blocks)

    def _usage_fields(self) -> Mapping[str, int]:
        fields: dict[bytes, bytes] = command(self._client, "HGETALL", self._keys.usage())
        return {name.decode(): int(value) for name, value in fields.items()}
