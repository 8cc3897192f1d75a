"""What the books' scripts say of the blocks in Redis: read from one bounded list of each partition.

Owns the decoding of an entry and the place that a follower has reached. What an entry means is ``lua/told.lua``'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import msgspec

from tiered.cluster.connection import Client, answered, command, pipelined
from tiered.cluster.directory import MetaRecord, whereabouts_of
from tiered.cluster.keys import Keys
from tiered.cluster.routing import Command
from tiered.types import HASH_BYTES, BlockHash, Happening, Owner, Source, TenantId, Told

Reached: TypeAlias = tuple[tuple[int, int], ...]
"""Per partition: the time of its newest entry seen, in the server's us, and how many of that time were seen."""

TOLD_MAX: Final = 2_000
"""Entries that a partition's list keeps, by ``lua/told.lua``."""

FOLLOWED_MAX: Final = 1_000
"""Of one partition between two looks of a follower: of more, the oldest are passed over."""


class BookEntry(msgspec.Struct, frozen=True, array_like=True):
    """As told.lua packs it. Bytes of one partition; -1 is none, or not known. block_hash: Lua packs it as text."""

    at_us: int
    what: str
    block_hash: msgspec.Raw
    tenant: str
    why: str
    for_tenant: str
    n_bytes: int
    idle_ms: int
    used: int
    limit: int
    reserved: int
    weight: float
    for_used: int
    for_limit: int
    for_reserved: int
    for_weight: float
    tier_used: int
    capacity: int


_ENTRY: Final = msgspec.msgpack.Decoder(BookEntry)
_RECORD: Final = msgspec.msgpack.Decoder(MetaRecord)

_TICK_MS: Final = 10
_EPOCH_TICKS: Final = 173_568_960_000
_DEPTHS: Final = 262_144
"""Of the scores by which a tenant's blocks are in order; ``lua/books.lua`` makes them."""


@dataclass(frozen=True, slots=True)
class InRedis:
    """What the shared state says of one block. n_bytes: of its value, 0 while there is none. pinned_for_s: until it
    may leave. owners: the lives that say they hold it hot."""

    is_stored: bool = False
    n_bytes: int = 0
    tenants: tuple[TenantId, ...] = ()
    depth: int = 0
    idle_s: float = 0.0
    pinned_for_s: float = 0.0
    owners: tuple[Owner, ...] = ()


class BooksWhy:
    """Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def of_block(self, block_hash: BlockHash) -> list[Told]:
        """All that is remembered of it, oldest first. Cost: reads the whole list of its partition, 2 MB at most."""
        key = self._keys.of(block_hash).why()
        packed: list[bytes] = command(self._client, "LRANGE", key, 0, -1, key=key)
        named = bytes(block_hash)
        found = [_told(entry) for entry in reversed(packed) if named in entry]
        return [told for told in found if told is not None and told.happening.block_hash == block_hash]

    def found(self, block_hash: BlockHash) -> InRedis:
        """Where the block is, in two round trips."""
        keys = self._keys.of(block_hash)
        packed: bytes | None = command(self._client, "GET", keys.meta(block_hash), key=keys.meta(block_hash))
        where = whereabouts_of(packed)
        if packed is None or not where.in_redis:
            return InRedis(owners=where.owners)
        record = _RECORD.decode(packed)
        tenants = tuple(TenantId(name) for name in record.tenants)
        lists = [keys.tenant_blocks(tenant) for tenant in tenants]
        asked = [Command(("TIME",), keys.usage()), *(Command(("ZSCORE", key, block_hash), key) for key in lists)]
        [(seconds, micros), *scores] = answered(pipelined(self._client, asked))
        ahead_s = max((_used_at_s(float(score)) for score in scores if score is not None), default=0.0) - (
            int(seconds) + int(micros) / 1e6
        )
        return InRedis(
            is_stored=True,
            n_bytes=record.size,
            tenants=tenants,
            depth=record.depth,
            idle_s=max(0.0, -ahead_s),
            pinned_for_s=max(0.0, ahead_s),
            owners=where.owners,
        )

    def newest(self, n_max: int) -> tuple[list[Told], Reached]:
        """The newest of all partitions, oldest first, and where to follow on from."""
        lists = self._read(n_max)
        told = _in_order(lists)
        return told[-n_max:], tuple(_reached(entries, (0, 0)) for entries in lists)

    def after(self, reached: Reached) -> tuple[list[Told], Reached]:
        """What came since, oldest first. A place that is not of this many partitions is one before all there is."""
        lists = self._read(FOLLOWED_MAX)
        places = reached if len(reached) == len(lists) else ((0, 0),) * len(lists)
        new = [_newer(entries, place) for entries, place in zip(lists, places, strict=True)]
        return _in_order(new), tuple(_reached(entries, at) for entries, at in zip(lists, places, strict=True))

    def _read(self, n_max: int) -> list[list[Told]]:
        """Of each partition the newest, newest first."""
        commands = []
        for part in self._keys.every():
            commands.append(Command(("LRANGE", part.why(), 0, n_max - 1), part.why()))
        replies = cast(list[list[bytes]], answered(pipelined(self._client, commands)))
        return [[told for entry in packed if (told := _told(entry)) is not None] for packed in replies]


def _used_at_s(score: float) -> float:
    return (math.ceil(score / _DEPTHS) + _EPOCH_TICKS) * _TICK_MS / 1000


def _told(packed: bytes) -> Told | None:
    """None for what does not decode, such as an entry of a later version; seq is the server's us."""
    try:
        entry = _ENTRY.decode(packed)
    except msgspec.MsgspecError:
        return None
    block_hash = BlockHash(bytes(entry.block_hash)[-HASH_BYTES:])
    happening = Happening(entry.what, block_hash, entry.tenant, Source.REDIS.value, 1, dict(_detail(entry)))
    return Told(entry.at_us, entry.at_us / 1e6, happening)


def _detail(entry: BookEntry) -> Mapping[str, int | float | str]:
    detail: dict[str, int | float | str] = {
        "why": entry.why,
        "for_tenant": entry.for_tenant,
        "bytes": entry.n_bytes,
        "used": entry.used,
        "limit": entry.limit,
        "reserved": entry.reserved,
        "weight": entry.weight,
        "tier_used": entry.tier_used,
        "capacity": entry.capacity,
    }
    if entry.idle_ms >= 0:
        detail["idle_s"] = entry.idle_ms / 1000
    if entry.for_tenant not in ("", entry.tenant):
        detail |= {
            "for_used": entry.for_used,
            "for_limit": entry.for_limit,
            "for_reserved": entry.for_reserved,
            "for_weight": entry.for_weight,
        }
    return detail


def _in_order(lists: Sequence[Sequence[Told]]) -> list[Told]:
    """Oldest first; of one time as their partition has them."""
    return sorted((told for entries in lists for told in reversed(entries)), key=lambda told: told.at)


def _newer(entries: Sequence[Told], place: tuple[int, int]) -> Sequence[Told]:
    """Those that a follower at that place has not seen; entries are newest first."""
    at, n_seen = place
    later = [told for told in entries if told.seq > at]
    of_that_time = [told for told in entries if told.seq == at]
    return [*later, *of_that_time[: max(0, len(of_that_time) - n_seen)]]


def _reached(entries: Sequence[Told], before: tuple[int, int]) -> tuple[int, int]:
    if not entries:
        return before
    newest = max(told.seq for told in entries)
    return newest, sum(told.seq == newest for told in entries)
