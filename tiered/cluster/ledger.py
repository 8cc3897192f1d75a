"""Bytes in the Redis tier: who may store what, what is stored, and who is charged for it.

Owns the reservations, the charges and the order in which a tenant's blocks leave; the values themselves are written
and read elsewhere, under a reservation. All decisions are taken by Redis in Lua, so any number of writers on any
number of nodes keep ``used + pending <= limit`` at every moment (I5).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tiered.cluster import scripts
from tiered.cluster.allotments import Allotments
from tiered.cluster.bounds import CAPACITY
from tiered.cluster.connection import Client, answered, pipelined
from tiered.cluster.keys import Keys, partition_of
from tiered.cluster.routing import Command
from tiered.cluster.scripts import Audit
from tiered.errors import TierError
from tiered.types import NO_HASH, BlockHash, TenantId

CLEARED_PER_CALL: Final = 128
CLEAR_CALLS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    """size_bytes is what Redis will hold: header and payload. depth: blocks before this one in its prefix, the last
    of which is parent, b"" for none."""

    block_hash: BlockHash
    tenant: TenantId
    size_bytes: int
    depth: int
    parent: BlockHash = NO_HASH


class ReserveAnswer(enum.IntEnum):
    """The numbers are reserve.lua's, but for 0: the server of that partition gave no answer, while others did."""

    UNANSWERED = scripts.UNANSWERED
    RESERVED = 1
    RESERVED_AFTER_EVICTING_OWN = 2
    ALREADY_THERE = 3
    PENDING_ELSEWHERE = 4
    REFUSED_QUOTA = 5
    REFUSED_FULL = 6
    RESERVED_AFTER_RECLAIMING = 7

    @property
    def reserved(self) -> bool:
        return self in _RESERVED


_RESERVED: Final = frozenset(
    {
        ReserveAnswer.RESERVED,
        ReserveAnswer.RESERVED_AFTER_EVICTING_OWN,
        ReserveAnswer.RESERVED_AFTER_RECLAIMING,
    }
)


@dataclass(frozen=True, slots=True)
class RedisUsage:
    used_bytes: int
    pending_bytes: int
    blocks: int


class RedisLedger:
    """The shared books, of all partitions together. Errors of every method: TierError when Redis does not answer.

    With several partitions, what concerns many blocks is done where their servers answer; it is an error only if
    none does.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._allotments = Allotments(client, keys)

    def reserve(self, requests: Sequence[ReserveRequest], *, ttl_s: float) -> list[ReserveAnswer]:
        """Set bytes aside for each value, in order; a reservation not committed within ttl_s ends by itself."""
        by_tenant: dict[TenantId, list[int]] = {}
        for index, request in enumerate(requests):
            by_tenant.setdefault(request.tenant, []).append(index)
        answers: dict[int, ReserveAnswer] = {}
        for tenant, indices in by_tenant.items():
            given = self._reserve(tenant, [requests[i] for i in indices], ttl_s)
            answers.update(zip(indices, given, strict=True))
        return [answers[index] for index in range(len(requests))]

    def commit(self, items: Sequence[tuple[BlockHash, TenantId, int]]) -> list[bool]:
        """The reserved values, given with their sizes, are written: charge them and let them be found.

        False: not committed, because the reservation ended or the value is not of the reserved size; nothing of it is
        left then that this writer would have to delete.
        """
        return scripts.commit(self._client, self._keys, items)

    def abort(self, items: Sequence[tuple[BlockHash, TenantId]]) -> int:
        """Give reservations back; returns how many there were."""
        return scripts.abort(self._client, self._keys, items)

    def touch(self, hashes: Sequence[BlockHash], tenant: TenantId, *, first_depth: int = 0) -> int:
        """Mark blocks as used now, given in prefix order: of one prefix the deeper blocks leave first.

        The tenant is charged its part of those it shares from now on, as far as its limit allows.
        """
        return scripts.touch(self._client, self._keys, hashes, tenant, first_depth=first_depth) if hashes else 0

    def pin(self, hashes: Sequence[BlockHash], tenant: TenantId, *, lease_s: float) -> int:
        """Keep a prefix from being evicted for so long; returns how many of its blocks are there."""
        ahead_ms = max(1, round(lease_s * 1000))
        return scripts.touch(self._client, self._keys, hashes, tenant, ahead_ms=ahead_ms) if hashes else 0

    def unpin(self, hashes: Sequence[BlockHash], tenant: TenantId) -> int:
        return scripts.touch(self._client, self._keys, hashes, tenant, even_newer=True) if hashes else 0

    def clear(self, tenant: TenantId) -> int:
        """Let the tenant go of all it holds; returns how many blocks. What others use too stays for them."""
        return sum(self._clear(part, tenant) for part in self._keys.every())

    def expire(self, tenant: TenantId, *, idle_s: float) -> int:
        """Let the tenant go of what it has not used for longer than that."""
        idle_ms = round(idle_s * 1000)
        return sum(self._expire(part, tenant, idle_ms) for part in self._keys.every())

    def remove(self, hashes: Sequence[BlockHash], *, why: str = "found corrupt or lost") -> int:
        """Forget values that proved corrupt or lost, and their charge; returns how many were charged.

        why: for the why-log.
        """
        return scripts.remove(self._client, self._keys, hashes, why=why)

    def usage(self) -> dict[TenantId, RedisUsage]:
        """Per tenant. The bytes of one partition are of one moment, the block counts of the next."""
        fields = self._usage_fields()
        tenants = sorted({TenantId(name[2:]) for name in fields if name[1:2] == ":"})
        parts = self._keys.every()
        counts = [Command(("ZCARD", key), key) for t in tenants for part in parts if (key := part.tenant_blocks(t))]
        blocks: list[int] = answered(pipelined(self._client, counts)) if counts else []
        return {
            tenant: RedisUsage(
                fields.get(f"u:{tenant}", 0),
                fields.get(f"p:{tenant}", 0),
                sum(blocks[i * len(parts) : (i + 1) * len(parts)]),
            )
            for i, tenant in enumerate(tenants)
        }

    def total(self) -> RedisUsage:
        """Of the whole tier; the bytes are kept as sums of their own, so they can be checked against usage()."""
        fields = self._usage_fields()
        blocks = sum(usage.blocks for usage in self.usage().values())
        return RedisUsage(fields.get("U", 0), fields.get("P", 0), blocks)

    def audit(
        self, hashes: Sequence[BlockHash], *, settle: bool, parts_met: Mapping[BlockHash, int] = MappingProxyType({})
    ) -> list[Audit]:
        """Find, and settle, what records and values do not agree on; see audit.lua."""
        return scripts.audit(self._client, self._keys, hashes, settle=settle, parts_met=parts_met)

    def _reserve(self, tenant: TenantId, requests: Sequence[ReserveRequest], ttl_s: float) -> list[ReserveAnswer]:
        answers = self._ask(tenant, requests, ttl_s)
        if self._keys.partitions == 1:
            return answers
        got_more = [
            index
            for name, answer in ((tenant, ReserveAnswer.REFUSED_QUOTA), (CAPACITY, ReserveAnswer.REFUSED_FULL))
            for index in self._brought(name, [i for i, given in enumerate(answers) if given is answer], requests)
        ]
        again = sorted(got_more)
        if again:
            for index, answer in zip(again, self._ask(tenant, [requests[i] for i in again], ttl_s), strict=True):
                answers[index] = answer
        evicted = ReserveAnswer.RESERVED_AFTER_EVICTING_OWN
        self._brought(tenant, [i for i, answer in enumerate(answers) if answer is evicted], requests, may_force=False)
        return answers

    def _ask(self, tenant: TenantId, requests: Sequence[ReserveRequest], ttl_s: float) -> list[ReserveAnswer]:
        rows = [(r.block_hash, r.size_bytes, r.depth, r.parent) for r in requests]
        given = scripts.reserve(self._client, self._keys, tenant, rows, ttl_ms=max(1, round(ttl_s * 1000)))
        return [ReserveAnswer(answer) for answer in given]

    def _brought(
        self, name: str, places: Sequence[int], requests: Sequence[ReserveRequest], *, may_force: bool = True
    ) -> Sequence[int]:
        """The requests at those places, if other partitions had allotment for any of them; else none.

        So too while a partition's server does not answer: what lies unused there is not known, and the answers stand.
        """
        short: Counter[int] = Counter()
        for place in places:
            request = requests[place]
            short[partition_of(request.block_hash, self._keys.partitions)] += request.size_bytes
        if not short:
            return ()
        may_force = may_force and name != CAPACITY
        try:
            return places if self._allotments.move(name, short, may_force=may_force) else ()
        except TierError:
            return ()

    def _clear(self, part: Keys, tenant: TenantId) -> int:
        return _all(lambda: scripts.clear(self._client, part, tenant, batch=CLEARED_PER_CALL))

    def _expire(self, part: Keys, tenant: TenantId, idle_ms: int) -> int:
        return _all(lambda: scripts.expire(self._client, part, tenant, idle_ms=idle_ms, batch=CLEARED_PER_CALL))

    def _usage_fields(self) -> Mapping[str, int]:
        commands = [Command(("HGETALL", part.usage()), part.usage()) for part in self._keys.every()]
        sums: Counter[str] = Counter()
        for fields in answered(pipelined(self._client, commands)):
            sums.update({name.decode(): int(value) for name, value in fields.items()})
        return sums


def _all(step: Callable[[], int]) -> int:
    """Steps until one falls short of its batch; one of more than that many calls leaves the rest to the next."""
    done = 0
    for _ in range(CLEAR_CALLS_MAX):
        n = step()
        done += n
        if n < CLEARED_PER_CALL:
            break
    return done
