"""What changes in the directory and in the tier, as it happens: a bounded stream for each partition.

Owns how entries are read, and what a reader needs to begin: where the streams stand, and what is held by then. Who
mirrors the directory takes :meth:`Changes.positions` first, then loads what is held, then follows with
:meth:`Changes.read`: an entry of something that the loaded state knew already changes nothing. The scripts write
(``lua/stream.lua``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tiered.cluster.connection import Client, answered, command, pipelined
from tiered.cluster.keys import Keys
from tiered.cluster.routing import Command
from tiered.types import BlockHash, Epoch, NodeId, TenantId

ENTRIES_MAX: Final = 1_024
"""About so many are kept of each partition, as ``lua/stream.lua`` has it; a reader further behind begins anew."""

IN_TIER: Final = NodeId("")
"""In a node's place: the Redis tier itself."""

_PAGE: Final = 2_000


@dataclass(frozen=True, slots=True)
class Change:
    """One entry: what this life of the node holds from ``seq`` on, and what it holds no longer.

    node: IN_TIER, with epoch 0, for what the tier has stored. stored, removed: joined hashes, HASH_BYTES each; a hash
    in both is removed. Of one partition, seq grows by one from entry to entry.
    """

    partition: int
    seq: int
    node: NodeId
    epoch: Epoch
    stored: bytes
    removed: bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """changes: in order within each partition.

    lost: partitions whose entries do not go on where the reader stood: it fell behind, the server restarted empty, or
    a replica took over that had not heard everything. What is mirrored of those has to be loaded anew.
    silent: partitions whose server did not answer; there may be news.
    """

    changes: tuple[Change, ...]
    lost: frozenset[int]
    silent: frozenset[int]


class Changes:
    """For one reader. Errors of every method: TierError when no server answers, or for a page, the one asked.

    It remembers the last entry of each partition that it has handed out, since ids alone do not tell a stream from
    one that began anew and has grown as long.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._parts = keys.every()
        self._last: dict[int, Change] = {}

    def positions(self) -> tuple[int, ...]:
        """The seq of each partition's last entry, 0 where there is none yet. Errors: TierError if any is silent."""
        commands = [
            Command(("XREVRANGE", part.changes(), "+", "-", "COUNT", 1), part.changes()) for part in self._parts
        ]
        for partition, rows in enumerate(answered(pipelined(self._client, commands))):
            self._remember([_change(partition, row) for row in rows], partition)
        return tuple(
            self._last[partition].seq if partition in self._last else 0 for partition in range(len(self._parts))
        )

    def position(self, partition: int) -> int:
        """As positions(), of one partition: to begin it anew."""
        key = self._parts[partition].changes()
        rows = command(self._client, "XREVRANGE", key, "+", "-", "COUNT", 1)
        self._remember([_change(partition, row) for row in rows], partition)
        return self._last[partition].seq if partition in self._last else 0

    def read(self, after: Sequence[int], count: int = 64) -> Reading:
        """At most ``count`` entries of each partition that follow those the reader has; one round trip a server."""
        commands = []
        for part, seq in zip(self._parts, after, strict=True):
            start = f"0-{seq}" if seq else "-"  # from the last one on: is it still the one that the reader had?
            commands.append(
                Command(("XRANGE", part.changes(), start, "+", "COUNT", count + (seq > 0)), part.changes())
            )
        replies = pipelined(self._client, commands)
        if all(isinstance(reply, Exception) for reply in replies):
            answered(replies)
        changes: list[Change] = []
        lost, silent = set(), set()
        for partition, reply in enumerate(replies):
            if isinstance(reply, Exception):
                silent.add(partition)
                continue
            found = [_change(partition, row) for row in reply]
            if not self._goes_on(partition, after[partition], found):
                lost.add(partition)
                continue
            news = found[1:] if after[partition] else found
            self._remember(news or found, partition)
            changes += news
        return Reading(tuple(changes), frozenset(lost), frozenset(silent))

    def members(self, node: NodeId, epoch: Epoch) -> Iterator[list[BlockHash]]:
        """What one life holds, in pages, by partition; what changes meanwhile may or may not be there."""
        for partition in range(len(self._parts)):
            yield from self.members_of(partition, node, epoch)

    def members_of(self, partition: int, node: NodeId, epoch: Epoch) -> Iterator[list[BlockHash]]:
        yield from pages(self._client, "SSCAN", self._parts[partition].node_blocks(node, epoch))

    def stored(self, tenants: Sequence[TenantId]) -> Iterator[list[BlockHash]]:
        """What the tier has stored for these tenants, in pages; a block that several use comes once for each."""
        for partition in range(len(self._parts)):
            yield from self.stored_of(partition, tenants)

    def stored_of(self, partition: int, tenants: Sequence[TenantId]) -> Iterator[list[BlockHash]]:
        for tenant in tenants:
            yield from pages(self._client, "ZSCAN", self._parts[partition].tenant_blocks(tenant))

    def charged_tenants(self) -> list[TenantId]:
        """Who has anything stored: whose blocks to ask stored() for."""
        commands = [Command(("HKEYS", part.usage()), part.usage()) for part in self._parts]
        names = {name for reply in answered(pipelined(self._client, commands)) for name in reply}
        return sorted(TenantId(name[2:].decode()) for name in names if name.startswith(b"u:"))

    def _goes_on(self, partition: int, after: int, found: Sequence[Change]) -> bool:
        if not found:
            return after == 0
        if after == 0:
            return found[0].seq == 1
        known = self._last.get(partition)
        return found[0].seq == after and (known is None or known.seq != after or known == found[0])

    def _remember(self, changes: Sequence[Change], partition: int) -> None:
        if changes:
            self._last[partition] = changes[-1]
        else:
            self._last.pop(partition, None)


def pages(client: Client, scan: Literal["SSCAN", "ZSCAN"], key: bytes) -> Iterator[list[BlockHash]]:
    """All members that a set or a sorted set has throughout, in pages; some may come twice."""
    cursor = 0
    while True:
        reply, items = command(client, scan, key, cursor, "COUNT", _PAGE)
        cursor = int(reply)
        if items:
            yield list(items) if scan == "SSCAN" else [member for member, _ in items]
        if cursor == 0:
            return


def _change(partition: int, row: tuple[bytes, Mapping[bytes, bytes]]) -> Change:
    entry_id, fields = row
    return Change(
        partition=partition,
        seq=int(entry_id.partition(b"-")[2]),
        node=NodeId(fields[b"n"].decode()),
        epoch=Epoch(int(fields[b"e"])),
        stored=fields[b"s"],
        removed=fields[b"r"],
    )
