"""When a life of a node tells the directory what, and how it finds out that the directory has it wrong.

Owns what is held here as far as the directory is to know it, what is still to be said of that, and the comparison of
both sides. Decides and sends nothing: :meth:`Announcing.next` says what to do, one thing at a time, and its host
says what came of it. Whatever is answered late, for an ask that was given up or of an earlier life, changes nothing.

What is said carries a growing number, so that a batch that was given up for lost and arrives after all, behind what
was said later, is refused by the partition. The one case that this misses, since the number ends with the set's last
member, leaves a block too many, which the next comparisons find: count and sum of each partition are compared every
few seconds, and what differs twice in a row is read and put right, in that partition alone. Stamps in the blocks'
records can be lost without that; so a part of what is held is said again in each round, all of it in the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, TypeAlias

from tiered.cluster.announcement import Announcement, Heard, announcements
from tiered.cluster.digest import Digest, digest_of, share_of
from tiered.cluster.keys import partition_of
from tiered.types import NO_EPOCH, BlockHash, Epoch

BATCH_MAX: Final = 4_096
"""Blocks said at once: 10 ms or so of the server's time, in pieces, and over well within a call's deadline."""

GONE_MAX: Final = 200_000
"""Removals remembered while nobody hears them, 20 MB or so; beyond it the directory's set is read and compared."""

CHECK_S: Final = 5.0
RECHECK_S: Final = 1.0
"""After a comparison that found a difference, which has to stand a second time."""

REFRESH_MAX: Final = 512
REFRESH_LAP_S: Final = 60.0
"""Said again with each comparison, until all was; a small pool begins again no sooner than this."""


@dataclass(frozen=True, slots=True, eq=False)
class Say:
    epoch: Epoch
    announcements: tuple[Announcement, ...]

    @property
    def n_blocks(self) -> int:
        return sum(len(one.stored) + len(one.removed) for one in self.announcements)


@dataclass(frozen=True, slots=True, eq=False)
class Compare:
    """Ask the directory for its digests. held: those of this life, by partition."""

    epoch: Epoch
    held: tuple[Digest, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Read the directory's set of this life in one partition, which is not what is held."""

    epoch: Epoch
    partition: int


Ask: TypeAlias = Say | Compare | Read


@dataclass(frozen=True, slots=True)
class AnnouncingCounters:
    """announced_blocks: news that the directory has heard, come or gone. repairs: partitions that were put right;
    repaired_blocks: what was wrong in them. refreshed_blocks: said again though nothing had changed."""

    announced_blocks: int = 0
    repairs: int = 0
    repaired_blocks: int = 0
    refreshed_blocks: int = 0


@dataclass(slots=True)
class _Part:
    """One partition. pending: blocks of which is to be said whether they are here."""

    here: set[BlockHash] = field(default_factory=set)
    sum: int = 0
    pending: dict[BlockHash, None] = field(default_factory=dict)
    is_suspect: bool = False
    is_to_be_read: bool = False
    is_to_be_restated: bool = False

    @property
    def digest(self) -> Digest:
        return Digest(len(self.here), self.sum)


class Announcing:
    """For one node; plain and single-threaded."""

    def __init__(self, partitions: int = 1) -> None:
        self.epoch = NO_EPOCH
        self.counters = AnnouncingCounters()
        self._parts = [_Part() for _ in range(partitions)]
        self._number = 0
        self._again: set[BlockHash] = set()
        """Of what is pending or under way, what is no news."""
        self._under_way: Ask | None = None
        self._next_check = 0.0
        self._next_read = 0.0
        self._lap: Iterator[BlockHash] = iter(())
        self._next_lap = 0.0

    @property
    def pending_blocks(self) -> int:
        """Of which the directory has yet to hear, those under way among them."""
        said = self._under_way.announcements if isinstance(self._under_way, Say) else ()
        under_way = sum(len(one.stored) + len(one.removed) for one in said)
        return under_way + sum(len(part.pending) for part in self._parts)

    @property
    def differing(self) -> int:
        """Partitions that were not what is held here when they were compared last, and are not put right yet."""
        return sum(part.is_suspect or part.is_to_be_read or part.is_to_be_restated for part in self._parts)

    def begin_life(self, epoch: Epoch, resident: Collection[BlockHash], now: float) -> None:
        """Forget what an older epoch had to say; all that is here is news to the new one."""
        self.epoch = epoch
        n = len(self._parts)
        groups: list[list[BlockHash]] = [[] for _ in range(n)]
        for block_hash in resident:
            groups[partition_of(block_hash, n)].append(block_hash)
        self._parts = []
        for group in groups:
            here = set(group)
            self._parts.append(_Part(here, digest_of(here).sum, dict.fromkeys(group)))
        self._number, self._under_way = 0, None
        self._again.clear()
        self._next_check, self._next_read = now + CHECK_S, now
        self._lap, self._next_lap = iter(()), now + REFRESH_LAP_S

    def end_life(self) -> None:
        """There is nothing to say, and nobody to say it for, until the next life begins."""
        self.epoch, self._under_way = NO_EPOCH, None
        self._parts = [_Part() for _ in self._parts]

    def note(self, stored: Collection[BlockHash], removed: Collection[BlockHash]) -> None:
        """What came and what left since the last time; no hash in both."""
        if self.epoch == NO_EPOCH:
            return
        n = len(self._parts)
        if self._again:
            self._again.difference_update(stored, removed)
        for block_hash in stored:
            part = self._parts[partition_of(block_hash, n)]
            part.pending[block_hash] = None
            if block_hash not in part.here:
                part.here.add(block_hash)
                part.sum ^= share_of(block_hash)
        for block_hash in removed:
            part = self._parts[partition_of(block_hash, n)]
            if block_hash in part.here:
                part.pending[block_hash] = None
                part.here.remove(block_hash)
                part.sum ^= share_of(block_hash)
        for part in self._parts:
            if len(part.pending) > len(part.here) + GONE_MAX // n:
                part.pending = {}
                part.is_to_be_read = True

    def next(self, now: float) -> Ask | None:
        """What to do now; None while something is under way, or for want of anything."""
        if self._under_way is None and self.epoch != NO_EPOCH:
            self._under_way = self._to_read(now) or self._to_say() or self._to_compare(now)
            return self._under_way
        return None

    def heard(self, ask: Say, answers: Sequence[Heard | None]) -> None:
        """In the order of its announcements what became of each; None for silence."""
        if not self._ended(ask):
            return
        n_blocks = 0
        for one, answer in zip(ask.announcements, answers, strict=True):
            if answer is not None and answer.accepted:
                n_blocks += len(one.stored) + len(one.removed) - self._no_news(one)
                if one.whole is not None:
                    self._parts[one.partition].is_to_be_restated = False
                continue
            if answer is not None:
                self._number = max(self._number, answer.number)
            self._say_again(one)
        self.counters = replace(self.counters, announced_blocks=self.counters.announced_blocks + n_blocks)

    def compared(self, ask: Compare, found: Sequence[Digest | None], now: float) -> None:
        """By partition what the directory has; None for silence, which says nothing."""
        if not self._ended(ask):
            return
        for part, held, theirs in zip(self._parts, ask.held, found, strict=True):
            if theirs is not None:
                is_wrong = theirs != held
                part.is_to_be_read = part.is_to_be_read or (is_wrong and part.is_suspect)
                part.is_suspect = is_wrong and not part.is_to_be_read
        if any(part.is_suspect for part in self._parts):
            self._next_check = now + RECHECK_S
        else:
            self._next_check = now + CHECK_S
            self._refresh(now)

    def read(self, ask: Read, members: Collection[BlockHash]) -> int:
        """What the directory's set holds; how many blocks are wrong in it, and will be said again."""
        if not self._ended(ask):
            return 0
        part = self._parts[ask.partition]
        part.is_to_be_read, part.is_to_be_restated = False, True
        wrong = part.here.symmetric_difference(members)
        part.pending |= dict.fromkeys(wrong)
        self.counters = replace(
            self.counters,
            repairs=self.counters.repairs + 1,
            repaired_blocks=self.counters.repaired_blocks + len(wrong),
        )
        return len(wrong)

    def failed(self, ask: Ask, now: float) -> None:
        """No answer came. What was to be said may have been heard, or may yet be."""
        if not self._ended(ask):
            return
        if isinstance(ask, Say):
            for one in ask.announcements:
                self._say_again(one)
        elif isinstance(ask, Read):
            self._next_read = now + RECHECK_S  # what other partitions are to be told does not wait for it
        else:
            self._next_check = now + CHECK_S

    def _ended(self, ask: Ask) -> bool:
        """Whether it was this one that was waited for."""
        if ask is not self._under_way:
            return False
        self._under_way = None
        return True

    def _to_read(self, now: float) -> Read | None:
        if now < self._next_read:
            return None
        for partition, part in enumerate(self._parts):
            if part.is_to_be_read:
                return Read(self.epoch, partition)
        return None

    def _to_say(self) -> Say | None:
        """Of every partition a like part, or one that does not hear would keep the others from hearing."""
        talking = sum(bool(part.pending) for part in self._parts)
        said: list[Announcement] = []
        for partition, part in enumerate(self._parts):
            batch = list(islice(part.pending, -(-BATCH_MAX // talking))) if part.pending else []
            for block_hash in batch:
                del part.pending[block_hash]
            said += self._said_of(partition, part, batch)
        return Say(self.epoch, tuple(said)) if said else None

    def _said_of(self, partition: int, part: _Part, batch: list[BlockHash]) -> list[Announcement]:
        here = {block_hash: block_hash in part.here for block_hash in batch}
        said = [replace(one, partition=partition) for one in announcements(here, 1, self._count)]
        if part.is_to_be_restated and not part.pending:
            said = said or [Announcement(partition, self._count(), (), ())]
            said[-1] = replace(said[-1], whole=part.digest)
        return said

    def _count(self) -> int:
        self._number += 1
        return self._number

    def _to_compare(self, now: float) -> Compare | None:
        if now < self._next_check:
            return None
        return Compare(self.epoch, tuple(part.digest for part in self._parts))

    def _say_again(self, one: Announcement) -> None:
        pending = self._parts[one.partition].pending
        for block_hash in (*one.stored, *one.removed):
            pending[block_hash] = None

    def _no_news(self, one: Announcement) -> int:
        """How much of what was heard was only said again."""
        said_again = self._again.intersection(one.stored)
        self._again -= said_again
        return len(said_again)

    def _refresh(self, now: float) -> None:
        batch = list(islice(self._lap, REFRESH_MAX))
        if not batch and now >= self._next_lap:
            self._lap = iter([block_hash for part in self._parts for block_hash in part.here])
            self._next_lap = now + REFRESH_LAP_S
            batch = list(islice(self._lap, REFRESH_MAX))
        n = len(self._parts)
        for block_hash in batch:
            part = self._parts[partition_of(block_hash, n)]
            if block_hash in part.here:
                if block_hash not in part.pending:
                    self._again.add(block_hash)
                part.pending[block_hash] = None
        self.counters = replace(self.counters, refreshed_blocks=self.counters.refreshed_blocks + len(batch))
