"""Walks all that the tier and the directory hold, partition after partition, and settles what does not agree: the
slow, thorough half of the books.

Owns the walk, its memory of orphans and of ended lives, and the comparison of sums; what is wrong with a block is
audit.lua's to say. Lives that are registered no longer are swept by who saw them end; what an announcement left that
came after that is found here alone.
Sums that still differ from the records after a walk in which nobody wrote are put right by
:mod:`tiered.cluster.recount`.
An empty table is no finding: nothing is evicted because something else is missing. The one exception is a value
without a record, which nobody could ever find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tiered.cluster.connection import Client, command
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.membership import Membership
from tiered.cluster.recount import Mark, mark_of, recount
from tiered.types import NO_EPOCH, NO_HASH, NOWHERE, BlockHash, Epoch, NodeId, TenantId

Life: TypeAlias = tuple[NodeId, Epoch]

_SCAN_COUNT: Final = 1_000
_ORPHANS_MAX: Final = 100_000
"""Remembered from one walk to the next; more than that are settled by later walks."""


@dataclass(slots=True)
class Findings:
    """Of one walk. Counts are blocks, but for stamps; what was found was settled, if the walk was to settle.

    stamps: of nodes that do not list the block, or whose life has ended; those that were removed, or as far as one
    can tell would be. stray: a value in several parts may count more than once where it is not settled. recounted:
    partitions whose sums were put right at the end of the walk; what is told here is what they were before.

    charged and ledger_bytes: what tenants are charged by the blocks' own records, and by the books. They and
    stored_bytes are equal to the byte while nobody writes; ``is_quiet`` says that nobody did.
    """

    expired: int = 0
    lost: int = 0
    stray: int = 0
    relisted: int = 0
    orphans: int = 0
    idle: int = 0
    stamps: int = 0
    recounted: int = 0
    blocks: int = 0
    stored_bytes: int = 0
    charged: Counter[TenantId] = field(default_factory=Counter)
    ledger: Counter[TenantId] = field(default_factory=Counter)
    ledger_sum_bytes: int = 0
    is_quiet: bool = False

    @property
    def conserved(self) -> bool | None:
        """Whether sum over tenants = sum in the books = bytes that Redis holds; None if others wrote meanwhile."""
        if not self.is_quiet:
            return None
        sums = {self.stored_bytes, sum(self.ledger.values()), self.ledger_sum_bytes}
        return len(sums) == 1 and dict(self.charged) == dict(self.ledger)


class Auditor:
    """One walk after the other, in steps. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys, *, settle: bool = True) -> None:
        self._client = client
        self._keys = keys
        self._ledger = RedisLedger(client, keys)
        self._directory = Directory(client, keys)
        self._membership = Membership(client, keys)
        self._settle = settle
        self._partition = 0
        self._cursor = 0
        self._walk = Findings()
        self._at_start = Mark({}, b"", "")
        self._charged: Counter[TenantId] = Counter()
        self._listed: Counter[TenantId] = Counter()
        """Of the partition that is walked, by its records."""
        self._orphans: set[BlockHash] = set()
        self._orphans_before: frozenset[BlockHash] = frozenset()
        self._lives: set[Life] = set()
        self._ended_before: frozenset[Life] = frozenset()

    def walk(self, idle_s: Mapping[TenantId, float] | None = None) -> Findings:
        """A whole walk from where the last one stood."""
        while True:
            findings = self.step(idle_s)
            if findings is not None:
                return findings

    def step(self, idle_s: Mapping[TenantId, float] | None = None) -> Findings | None:
        """About a thousand keys further; the findings once the walk is through.

        idle_s: per tenant after how much idleness its blocks go.
        """
        keys = self._keys.every()[self._partition]
        if self._cursor == 0:
            self._begin(keys, idle_s or {})
        self._look_further(keys)
        if self._cursor:
            return None
        self._end(keys)
        self._partition = (self._partition + 1) % self._keys.partitions
        return None if self._partition else self._close()

    def _begin(self, keys: Keys, idle_s: Mapping[TenantId, float]) -> None:
        if self._partition == 0:
            self._walk = Findings(is_quiet=True)
            self._orphans = set()
            self._lives = set()
            if self._settle:
                self._walk.idle = sum(self._ledger.expire(tenant, idle_s=limit) for tenant, limit in idle_s.items())
        self._at_start = mark_of(self._client, keys)
        self._charged.clear()
        self._listed.clear()

    def _look_further(self, keys: Keys) -> None:
        """One step of SCAN, on the server that has the partition's slot."""
        pattern, own = keys.everything_pattern(), keys.usage()
        cursor, names = command(self._client, "SCAN", self._cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT, key=own)
        self._cursor = int(cursor)
        self._lives |= {life for name in names if (life := keys.life_of(name)) is not None}
        meta = keys.meta(NO_HASH)
        records = {hash_ for name in names if name.startswith(meta) and (hash_ := keys.hash_of(name))}
        values: dict[BlockHash, int] = {}
        for name in names:
            if not name.startswith(meta) and (hash_ := keys.hash_of(name)):
                values[hash_] = max(values.get(hash_, 0), keys.part_of(name))
        self._look_at(records)
        # Values whose records come, or came, in another step: only those without one are news.
        strays = self._ledger.audit(sorted(values.keys() - records), settle=self._settle, parts_met=values)
        self._walk.stray += sum(found.stray for found in strays)

    def _look_at(self, hashes: set[BlockHash]) -> None:
        walk = self._walk
        walk.stamps += self._directory.stray_stamps(sorted(hashes), remove=self._settle)
        for found in self._ledger.audit(sorted(hashes), settle=self._settle):
            walk.expired += found.expired
            walk.lost += found.lost
            walk.stray += found.stray
            walk.relisted += found.relisted
            walk.blocks += found.blocks
            walk.stored_bytes += found.stored_bytes
            walk.charged.update(found.charged)
            self._charged.update(found.charged)
            self._listed.update(found.listed)
            orphans = self._alone_everywhere(found.orphans)
            self._orphans.update(orphans[: _ORPHANS_MAX - len(self._orphans)])

    def _alone_everywhere(self, candidates: Sequence[tuple[BlockHash, BlockHash]]) -> list[BlockHash]:
        """Of (block, parent) as one partition sees them, the blocks whose parent no other partition knows of."""
        if self._keys.partitions == 1:
            return [block_hash for block_hash, _ in candidates]
        parents = self._directory.lookup([parent for _, parent in candidates], whole=True)
        return [orphan for (orphan, _), found in zip(candidates, parents, strict=True) if found == NOWHERE]

    def _end(self, keys: Keys) -> None:
        """The books of a partition that has been walked."""
        walk = self._walk
        mark = mark_of(self._client, keys)
        walk.is_quiet = walk.is_quiet and mark.usage == self._at_start.usage
        named = {name.decode(): int(value) for name, value in mark.usage.items()}
        if self._settle and mark == self._at_start and named != _books_of(self._charged):
            walk.recounted += recount(self._client, keys, mark, self._charged, self._listed)
        walk.ledger.update({TenantId(name[2:]): n_bytes for name, n_bytes in named.items() if name.startswith("u:")})
        walk.ledger_sum_bytes += named.get("U", 0)

    def _close(self) -> Findings:
        walk = self._walk
        walk.orphans = len(self._orphans)
        self._end_lives()
        if self._settle:
            seen_twice = self._orphans & self._orphans_before
            if seen_twice:
                self._ledger.remove(sorted(seen_twice), why="its prefix is nowhere")
            self._orphans_before = frozenset(self._orphans - seen_twice)
        return walk

    def _end_lives(self) -> None:
        """Who announces is registered before, so a life that was met and is not registered now has ended; unless the
        members are what was lost, and will be back in a moment. So it has to be met twice."""
        if not self._lives:
            self._ended_before = frozenset()
            return
        registered = self._membership.registered()
        ended = {(node, epoch) for node, epoch in self._lives if registered.get(node, NO_EPOCH) not in (epoch, None)}
        for node, epoch in sorted(ended & self._ended_before if self._settle else ended):
            self._walk.stamps += (
                self._directory.sweep(node, epoch) if self._settle else self._directory.count(node, epoch)
            )
        self._ended_before = frozenset(ended)


def _books_of(charged: Counter[TenantId]) -> dict[str, int]:
    """The usage hash as it is while nothing is pending."""
    used = {f"u:{tenant}": n_bytes for tenant, n_bytes in charged.items()}
    return used | {"U": charged.total()} if used else {}
