"""Blocks that lost their last hot place though a tenant asks for two copies: noted by sweeps, taken up by workers.

Owns the list and the way from a block back to the beginning of its prefix, since a pool holds none without it. A
block that is taken comes back by itself after a while, so a worker may die in the middle; two that bring up the same
one do no harm. Whether a worker has room, or serves the block's model, is for the worker to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from tiered.cluster.calls import Call, load, run
from tiered.cluster.connection import Client, answered, pipelined
from tiered.cluster.directory import STATE_COMMITTED, MetaRecord, parent_of, whereabouts_of
from tiered.cluster.keys import Keys
from tiered.cluster.routing import Command
from tiered.codec.frame import HEADER_BYTES, decode_header
from tiered.errors import IntegrityError
from tiered.types import NO_HASH, BlockHash, TenantId, Whereabouts

DEPTH_MAX: Final = 16_384
"""Questions on the way back: some seconds. Blocks of one prefix are noted together, and share the way."""

_LOST: Final = load("lost", "record")
_RECORD: Final = msgspec.msgpack.Decoder(MetaRecord)


@dataclass(frozen=True, slots=True)
class Line:
    """A block that Redis has, and all before it: hashes from the first of the prefix on, itself the last."""

    hashes: tuple[BlockHash, ...]
    scope_id: bytes
    tenants: tuple[TenantId, ...]
    where: Whereabouts


class LostCopies:
    """The shared list. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def take(self, n_blocks: int, *, lease_s: float) -> list[BlockHash]:
        """Some that nobody has taken in the last while; the caller has them for lease_s."""
        taken: list[BlockHash] = []
        waiting = self._waiting()
        for part, n_waiting in zip(self._keys.every(), waiting, strict=True):
            if n_waiting and len(taken) < n_blocks:
                call = Call([part.lost()], [_ms(lease_s), n_blocks - len(taken)])
                taken += cast(list[BlockHash], run(self._client, _LOST, [call])[0])
        return taken

    def put_back(self, hashes: Sequence[BlockHash], *, after_s: float = 0.0) -> None:
        """Others may take them, after so long."""
        run(self._client, _LOST, [Call([self._keys.of(h).lost()], [_ms(after_s), 0, h]) for h in hashes])

    def done(self, hashes: Sequence[BlockHash]) -> None:
        """They have what they wanted, or cannot have it."""
        answered(pipelined(self._client, [Command(("ZREM", key, h), key) for h in hashes if (key := self._of(h))]))

    def counts(self) -> tuple[int, int]:
        """How many wait, taken ones among them, and how many were dropped for want of room."""
        keys = [part.lost_dropped() for part in self._keys.every()]
        dropped: list[bytes | None] = answered(pipelined(self._client, [Command(("GET", key), key) for key in keys]))
        return sum(self._waiting()), sum(int(n or 0) for n in dropped)

    def lines(self, hashes: Sequence[BlockHash]) -> list[Line | None]:
        """The whole prefix of each; None for a block that Redis has not, or whose prefix is not known to its root."""
        records = self._records(hashes)
        heads = [Command(("GETRANGE", key, 0, HEADER_BYTES - 1), key) for h in hashes if (key := self._value(h))]
        found = answered(pipelined(self._client, heads)) if heads else []
        return [_line(h, head, records) for h, head in zip(hashes, found, strict=True)]

    def _records(self, hashes: Sequence[BlockHash]) -> dict[BlockHash, bytes | None]:
        """The records of these and of all before them."""
        records: dict[BlockHash, bytes | None] = {}
        missing = list(dict.fromkeys(hashes))
        for _ in range(DEPTH_MAX):
            if not missing:
                break
            commands = [Command(("GET", key), key) for h in missing if (key := self._keys.of(h).meta(h))]
            records.update(zip(missing, answered(pipelined(self._client, commands)), strict=True))
            before = {parent_of(records[h]) for h in missing}
            missing = [h for h in before if h != NO_HASH and h not in records]
        return records

    def _waiting(self) -> list[int]:
        keys = [part.lost() for part in self._keys.every()]
        return answered(pipelined(self._client, [Command(("ZCARD", key), key) for key in keys]))

    def _of(self, block_hash: BlockHash) -> bytes:
        return self._keys.of(block_hash).lost()

    def _value(self, block_hash: BlockHash) -> bytes:
        return self._keys.of(block_hash).block(block_hash)


def _line(block_hash: BlockHash, head: bytes, records: dict[BlockHash, bytes | None]) -> Line | None:
    record = _decoded(records.get(block_hash))
    if record is None or record.state != STATE_COMMITTED:
        return None
    try:
        scope_id = decode_header(head).scope_id
    except IntegrityError:  # a miss, for whoever reads it; an audit will see to it
        return None
    hashes = [block_hash]
    for _ in range(record.depth):
        before = parent_of(records[hashes[-1]])
        if records.get(before) is None:
            return None
        hashes.append(before)
    if parent_of(records[hashes[-1]]) != NO_HASH:
        return None
    tenants = tuple(TenantId(tenant) for tenant in record.tenants)
    return Line(tuple(reversed(hashes)), scope_id, tenants, whereabouts_of(records[block_hash]))


def _decoded(packed: bytes | None) -> MetaRecord | None:
    if packed is None:
        return None
    try:
        return _RECORD.decode(packed)
    except msgspec.MsgspecError:
        return None


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
