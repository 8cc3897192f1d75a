"""Where blocks are: which lives of which nodes hold a block hot, and whether Redis has its value.

Owns the owners' stamps in the blocks' meta records and each life's set of blocks. A stamp is a hint (I7): the
holder decides, and whether a life still counts is for whoever knows the members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import redis

from tiered.cluster import scripts
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.types import NOWHERE, BlockHash, Epoch, NodeId, Owner, Whereabouts

STATE_COMMITTED: Final = 2

_SWEEP_CALLS_MAX: Final = 256
"""Of one sweep: 131,072 blocks with the default batch, a fraction of a second; the next sweep goes on."""


class MetaRecord(msgspec.Struct, frozen=True, array_like=True):
    """A block's meta record as the scripts keep it; ``lua/record.lua`` is its only writer."""

    state: int
    size: int
    tenant: str
    depth: int
    expires_ms: int
    owners: list[str | int]


_RECORD: Final = msgspec.msgpack.Decoder(MetaRecord)


class Directory:
    """The shared record of whereabouts. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def announce(
        self, node: NodeId, epoch: Epoch, *, stored: Sequence[BlockHash], removed: Sequence[BlockHash]
    ) -> None:
        """Say what this life of the node now holds and what it no longer holds.

        A hash in both ends up removed. Late messages of an older life change nothing of a newer one (I8).
        """
        scripts.announce(self._client, self._keys, node, epoch, _changes(stored, removed))

    def lookup(self, hashes: Sequence[BlockHash]) -> list[Whereabouts]:
        """What is known of each block, in order; one round trip."""
        if not hashes:
            return []
        packed: list[bytes | None] = command(self._client, "MGET", *map(self._keys.meta, hashes))
        return [whereabouts_of(record) for record in packed]

    def sweep(self, node: NodeId, epoch: Epoch, *, batch: int = 512) -> int:
        """Remove the stamps of a life that has ended; returns how many. Of a very large set, some are left for the
        next call."""
        removed = 0
        for _ in range(_SWEEP_CALLS_MAX):
            taken, dropped = scripts.sweep(self._client, self._keys, node, epoch, batch=batch)
            removed += dropped
            if taken < batch:
                break
        return removed

    def count(self, node: NodeId, epoch: Epoch) -> int:
        """How many blocks this life has announced."""
        members: int = command(self._client, "SCARD", self._keys.node_blocks(node, epoch))
        return members


def whereabouts_of(packed: bytes | None) -> Whereabouts:
    """Decode one meta record; one that does not decode says nothing, like a missing one (doubt is a miss)."""
    if packed is None:
        return NOWHERE
    try:
        record = _RECORD.decode(packed)
    except msgspec.MsgspecError:
        return NOWHERE
    owners = tuple(
        Owner(node=NodeId(node), epoch=Epoch(epoch))
        for node, epoch in zip(record.owners[::2], record.owners[1::2], strict=False)
        if isinstance(node, str) and isinstance(epoch, int)
    )
    in_redis = record.state == STATE_COMMITTED
    return Whereabouts(in_redis=in_redis, stored_bytes=record.size if in_redis else 0, owners=owners)


def _changes(
    stored: Sequence[BlockHash], removed: Sequence[BlockHash]
) -> Iterator[tuple[Sequence[BlockHash], Sequence[BlockHash]]]:
    """Split into calls of bounded size; all that was stored goes first."""
    step = scripts.HASHES_PER_CALL
    for start in range(0, len(stored), step):
        yield stored[start : start + step], ()
    for start in range(0, len(removed), step):
        yield (), removed[start : start + step]
