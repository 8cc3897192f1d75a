"""Where blocks are: which lives of which nodes hold a block hot, and whether Redis has its value.

Owns the owners' stamps in the blocks' meta records and each life's set of blocks. A stamp is a hint (I7): the
holder decides, and whether a life still counts is for whoever knows the members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec
from redis.exceptions import TryAgainError

from tiered.cluster import scripts
from tiered.cluster.connection import Client, answered, pipelined
from tiered.cluster.keys import Keys, partition_of
from tiered.cluster.routing import Command
from tiered.types import HASH_BYTES, NO_HASH, NOWHERE, BlockHash, Epoch, NodeId, Owner, Whereabouts

STATE_COMMITTED: Final = 2

_SWEEP_CALLS_MAX: Final = 256
"""Of one sweep: 131,072 blocks with the default batch, a fraction of a second; the next sweep goes on."""


class MetaRecord(msgspec.Struct, frozen=True, array_like=True):
    """A block's meta record as the scripts keep it; ``lua/record.lua`` is its only writer."""

    state: int
    size: int
    tenants: list[str]
    depth: int
    expires_ms: int
    owners: tuple[str | int, ...]
    parent: msgspec.Raw


_RECORD: Final = msgspec.msgpack.Decoder(MetaRecord)


class Directory:
    """The shared record of whereabouts. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def announce(
        self, node: NodeId, epoch: Epoch, *, stored: Sequence[BlockHash], removed: Sequence[BlockHash]
    ) -> None:
        """Say what this life of the node now holds and what it no longer holds.

        A hash in both ends up removed. Late messages of an older life change nothing of a newer one (I8).
        """
        scripts.announce(self._client, self._keys, node, epoch, _changes(stored, removed))

    def lookup(self, hashes: Sequence[BlockHash], *, whole: bool = False) -> list[Whereabouts]:
        """What is known of each block, in order; one round trip to each server.

        A partition whose server does not answer says nothing of its blocks. Errors: TierError if no server answers;
        with whole, if any does not.
        """
        if not hashes:
            return []
        if self._keys.partitions == 1:
            return [
                whereabouts_of(record) for record in self._read([(self._keys, range(len(hashes)))], hashes, whole)[0]
            ]
        places: dict[int, list[int]] = {}
        for place, block_hash in enumerate(hashes):
            places.setdefault(partition_of(block_hash, self._keys.partitions), []).append(place)
        parts = self._keys.every()
        groups = [(parts[partition], theirs) for partition, theirs in places.items()]
        found = [NOWHERE] * len(hashes)
        for (_, theirs), records in zip(groups, self._read(groups, hashes, whole), strict=True):
            for place, record in zip(theirs, records, strict=False):
                found[place] = whereabouts_of(record)
        return found

    def sweep(self, node: NodeId, epoch: Epoch, *, batch: int = 512) -> int:
        """Remove the stamps of a life that has ended; returns how many. Of a very large set, some are left for the
        next call."""
        removed = 0
        calls_left = _SWEEP_CALLS_MAX
        for part in self._keys.every():
            while calls_left > 0:
                calls_left -= 1
                taken, dropped = scripts.sweep(self._client, part, node, epoch, batch=batch)
                removed += dropped
                if taken < batch:
                    break
        return removed

    def count(self, node: NodeId, epoch: Epoch) -> int:
        """How many blocks this life has announced."""
        keys = [part.node_blocks(node, epoch) for part in self._keys.every()]
        members: list[int] = answered(pipelined(self._client, [Command(("SCARD", key), key) for key in keys]))
        return sum(members)

    def _read(
        self, groups: Sequence[tuple[Keys, Sequence[int]]], hashes: Sequence[BlockHash], whole: bool
    ) -> list[list[bytes | None]]:
        """Packed records of each group, one MGET each; none for one whose server does not answer."""
        commands = []
        for part, places in groups:
            prefix = part.meta(NO_HASH)
            metas = [prefix + hashes[place] for place in places]
            commands.append(Command(("MGET", *metas), metas[0]))
        replies = pipelined(self._client, commands)
        for i, reply in enumerate(replies):
            if isinstance(
                reply, TryAgainError
            ):  # A slot that moves: some keys are here and some there, each is found.
                singles = [Command(("GET", key), commands[i].key) for key in commands[i].parts[1:]]
                replies[i] = [None if isinstance(one, Exception) else one for one in pipelined(self._client, singles)]
        if whole or all(isinstance(reply, Exception) for reply in replies):
            answered(replies)
        return [[] if isinstance(reply, Exception) else reply for reply in replies]


def parent_of(packed: bytes | None) -> BlockHash:
    """The hash of the block before, as a meta record names it; NO_HASH for a prefix's first, and for no record."""
    if packed is None:
        return NO_HASH
    try:
        parent = bytes(_RECORD.decode(packed).parent)
    except msgspec.MsgspecError:
        return NO_HASH
    return BlockHash(parent[-HASH_BYTES:]) if len(parent) > HASH_BYTES else NO_HASH  # Lua packs it as a string


def whereabouts_of(packed: bytes | None) -> Whereabouts:
    """Decode one meta record; one that does not decode says nothing, like a missing one (doubt is a miss)."""
    if packed is None:
        return NOWHERE
    try:
        record = _RECORD.decode(packed)
    except msgspec.MsgspecError:
        return NOWHERE
    in_redis = record.state == STATE_COMMITTED
    return _whereabouts(in_redis, record.size if in_redis else 0, record.owners)


@lru_cache(maxsize=1_024)
def _whereabouts(in_redis: bool, stored_bytes: int, stamps: tuple[str | int, ...]) -> Whereabouts:
    """The blocks of a prefix lie mostly at one place, and making the records anew is most of what a lookup costs."""
    owners = tuple(
        Owner(node=NodeId(node), epoch=Epoch(epoch))
        for node, epoch in zip(stamps[::2], stamps[1::2], strict=False)
        if isinstance(node, str) and isinstance(epoch, int)
    )
    return Whereabouts(in_redis=in_redis, stored_bytes=stored_bytes, owners=owners)


def _changes(
    stored: Sequence[BlockHash], removed: Sequence[BlockHash]
) -> Iterator[tuple[Sequence[BlockHash], Sequence[BlockHash]]]:
    """Split into calls of bounded size; all that was stored goes first."""
    step = scripts.HASHES_PER_CALL
    for start in range(0, len(stored), step):
        yield stored[start : start + step], ()
    for start in range(0, len(removed), step):
        yield (), removed[start : start + step]
