"""Where blocks are: which lives of which nodes hold a block hot, and whether Redis has its value.

Owns the owners' stamps in the blocks' meta records and each life's set of blocks. A stamp is a hint (I7): the
holder decides, and whether a life still counts is for whoever knows the members.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec
from redis.exceptions import TryAgainError

from tiered.cluster import scripts
from tiered.cluster.announcement import Announcement, Heard, announcements
from tiered.cluster.changes import pages
from tiered.cluster.connection import Client, answered, pipelined
from tiered.cluster.digest import Digest
from tiered.cluster.keys import Keys, partition_of
from tiered.cluster.routing import Command
from tiered.errors import TierUnavailable
from tiered.tenancy.copies import NO_SECONDS, TwoCopies
from tiered.types import HASH_BYTES, NO_HASH, NOWHERE, BlockHash, Epoch, NodeId, Owner, Whereabouts

STATE_COMMITTED: Final = 2

_NO_DIGEST: Final = Digest(-1, 0)

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

    @property
    def partitions(self) -> int:
        return self._keys.partitions

    def hear(self, node: NodeId, epoch: Epoch, said: Sequence[Announcement]) -> list[Heard | None]:
        """Take what this life of the node says; what became of each.

        None for one whose server did not answer, while another's did. What comes late changes nothing: neither of an
        older life (I8), nor of this one when something later was heard already.
        """
        return scripts.announce(self._client, self._keys, node, epoch, said)

    def announce(
        self, node: NodeId, epoch: Epoch, *, stored: Sequence[BlockHash], removed: Sequence[BlockHash]
    ) -> None:
        """Say the same unnumbered, any amount of it, for who waits for each answer. A hash in both is removed."""
        here = dict.fromkeys(stored, True) | dict.fromkeys(removed, False)
        said = list(announcements(here, self._keys.partitions))
        if None in self.hear(node, epoch, said):
            raise TierUnavailable("a server did not hear what was announced")

    def digests(self, node: NodeId, epoch: Epoch) -> list[Digest | None]:
        """What each partition has of this life, in short; one round trip to each server.

        None for a partition whose server does not answer. A digest that does not go with its set has a count that no
        set has, so that it agrees with nothing.
        """
        commands = []
        for part in self._keys.every():
            digest, members = part.node_digests(node, epoch), part.node_blocks(node, epoch)
            commands += [Command(("HMGET", digest, "n", "x"), digest), Command(("SCARD", members), members)]
        replies = pipelined(self._client, commands)
        if all(isinstance(reply, Exception) for reply in replies):
            answered(replies)
        return [_digest(*both) for both in zip(replies[::2], replies[1::2], strict=True)]

    def members(self, node: NodeId, epoch: Epoch, partition: int) -> set[BlockHash]:
        """What one partition has of this life."""
        key = self._keys.every()[partition].node_blocks(node, epoch)
        return {block_hash for page in pages(self._client, "SSCAN", key) for block_hash in page}

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

    def sweep(self, node: NodeId, epoch: Epoch, *, batch: int = 512, two: TwoCopies = NO_SECONDS) -> int:
        """Remove the stamps of a life that has ended; returns how many. Of a very large set, some are left for the
        next call.

        two: who asks for two copies; what of theirs is left in Redis alone is noted for :mod:`tiered.cluster.lost`.
        """
        removed = 0
        calls_left = _SWEEP_CALLS_MAX
        for part in self._keys.every():
            while calls_left > 0:
                calls_left -= 1
                taken, dropped = scripts.sweep(self._client, part, node, epoch, batch=batch, two=two)
                removed += dropped
                if taken < batch:
                    break
        return removed

    def count(self, node: NodeId, epoch: Epoch) -> int:
        """How many blocks this life has announced."""
        keys = [part.node_blocks(node, epoch) for part in self._keys.every()]
        members: list[int] = answered(pipelined(self._client, [Command(("SCARD", key), key) for key in keys]))
        return sum(members)

    def stray_stamps(self, hashes: Sequence[BlockHash], *, remove: bool) -> int:
        """How many stamps these blocks have of lives that do not list them; a server that lost keys leaves such."""
        return scripts.stray_stamps(self._client, self._keys, hashes, remove=remove)

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


def _digest(fields: list[bytes | None] | Exception, members: int | Exception) -> Digest | None:
    if isinstance(fields, Exception) or isinstance(members, Exception):
        return None
    count, total = fields
    if int(count or 0) != members:
        return _NO_DIGEST
    return Digest(members, int(total or b"0", 16))
