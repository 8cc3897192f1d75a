"""Keeps the mirror level with the directory: loads, follows the change streams, and compares counts now and then.

Owns when each of these is due, and that one round does a bounded part of it. What an entry changes is the mirror's
business. A round runs in a thread, so that Redis may be slow and a load may be long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.view.keeper import pause
from coordinator.view.mirror import REDIS, Life, Mirror, MirrorCounts
from coordinator.view.snapshot import ClusterView
from tiered.clock import Clock
from tiered.cluster.census import Census
from tiered.cluster.changes import Changes, Reading
from tiered.errors import TierError
from tiered.hashing.chain import join_hashes
from tiered.log import get_logger
from tiered.types import Epoch, NodeId

INTERVAL_S: Final = 0.1
"""Between two rounds: how late the mirror is when all is well."""

ENTRIES_PER_READ: Final = 128
READS_PER_ROUND: Final = 32
"""An entry holds up to some hundred hashes: a round takes about a second at most."""

LOADS_PER_ROUND: Final = 4
CHECKS_PER_ROUND: Final = 16
TIDIED_PER_ROUND: Final = 50_000

CHECK_INTERVAL_S: Final = 10.0
"""Between two comparisons of every count."""

STORED_INTERVAL_S: Final = 300.0
"""Between two loads of what one partition has stored because its count looks wrong, as blocks that several tenants
use make it look."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MirrorFacts:
    """lag_s: since the mirror was level with every stream; None before it first was. entries: applied. loads: of
    whole partitions after the first, since entries were missed. repairs: lives, or the tier, that were loaded anew in
    one partition because a count differed."""

    counts: MirrorCounts
    lag_s: float | None
    entries: int
    loads: int
    repairs: int


class Follower:
    """One thread at a time runs its rounds; facts may be asked at any time."""

    def __init__(
        self, changes: Changes, census: Census, mirror: Mirror, view: Callable[[], ClusterView], clock: Clock
    ) -> None:
        self.mirror = mirror
        self._changes = changes
        self._census = census
        self._view = view
        self._clock = clock
        self._partitions = range(mirror.partitions)
        self._members: Mapping[NodeId, Epoch] = {}
        self._taken_at = -1.0
        self._to_load: dict[tuple[int, Life], None] = {}
        self._to_check: dict[int, None] = {}
        self._check_at = 0.0
        self._surplus: dict[int, tuple[int, float]] = {}
        self._was_loaded: set[int] = set()
        self._tried: dict[int, int] = {}
        self._level_at: float | None = None
        self._entries = self._loads = self._repairs = 0

    @property
    def facts(self) -> MirrorFacts:
        level_at = self._level_at
        lag_s = None if level_at is None else max(0.0, self._clock.now() - level_at)
        return MirrorFacts(self.mirror.counts, lag_s, self._entries, self._loads, self._repairs)

    async def run(self, stop: asyncio.Event) -> None:
        """Round after round until told to stop; Redis being away only puts them off, and is said once."""
        is_away = False
        while not stop.is_set():
            try:
                await asyncio.to_thread(self.round)
            except TierError as error:
                if not is_away:
                    log.warning("the mirror of the directory falls behind", reason=str(error))
                is_away = True
            else:
                if is_away:
                    log.info("the mirror of the directory follows again")
                is_away = False
            await pause(stop, INTERVAL_S)

    def round(self) -> None:
        """One turn. Errors: TierError when Redis does not answer; what was done by then is kept."""
        self._look_around()
        self.mirror.tidy(TIDIED_PER_ROUND)
        is_level = self._follow()
        self._load_partitions()
        if is_level:
            self._load_lives()
            self._check()

    def _look_around(self) -> None:
        """Who is a member, whenever the view has been read anew."""
        view = self._view()
        if view.stale or view.taken_at == self._taken_at:
            return
        self._taken_at = view.taken_at
        members = {NodeId(node.info.node): node.epoch for node in view.nodes}
        for life in self.mirror.set_members(members):
            self._to_load |= dict.fromkeys((partition, life) for partition in self._partitions)
        # A life that had announced before we loaded, and was not yet in the view by then, is missing altogether.
        if members.items() - self._members.items():
            self._to_check = dict.fromkeys(self._partitions)
        self._members = members

    def _load_partitions(self) -> None:
        """A few of those that are due; one whose server does not answer comes again after the others."""
        due = [partition for partition in self._partitions if self.mirror.position(partition) < 0]
        due.sort(key=lambda partition: self._tried.get(partition, 0))
        for partition in due[:LOADS_PER_ROUND]:
            self._tried[partition] = max(self._tried.values(), default=0) + 1
            self._load_partition(partition)

    def _load_partition(self, partition: int) -> None:
        position = self._changes.position(partition)
        lives = {Life(*member) for member in self._members.items()} | self.mirror.lives.keys()
        holdings: list[tuple[Life, Iterable[bytes]]] = [
            (life, map(join_hashes, self._changes.members_of(partition, *life))) for life in lives
        ]
        holdings.append((REDIS, self._stored(partition)))
        self.mirror.load(partition, position, holdings)
        self._surplus.pop(partition, None)
        self._to_check[partition] = None
        if partition in self._was_loaded:
            self._loads += 1
            log.warning("changes were missed; loaded the partition anew", partition=partition)
        self._was_loaded.add(partition)

    def _stored(self, partition: int) -> Iterable[bytes]:
        return map(join_hashes, self._changes.stored_of(partition, self._census.tenants(partition)))

    def _follow(self) -> bool:
        """Apply what is new; whether the mirror is level with every stream then."""
        for _ in range(READS_PER_ROUND):
            started_at = self._clock.now()
            after = [max(0, self.mirror.position(partition)) for partition in self._partitions]
            reading = self._changes.read(after, ENTRIES_PER_READ)
            most = self._apply(reading)
            if most < ENTRIES_PER_READ:
                is_level = not reading.silent and not self.mirror.counts.unloaded
                if is_level:
                    self._level_at = started_at
                return is_level
        return False

    def _apply(self, reading: Reading) -> int:
        """The most entries that any partition had that goes on."""
        for partition in reading.lost:
            self.mirror.lose(partition)
        n_entries: dict[int, int] = {}
        for change in reading.changes:
            life = Life(change.node, change.epoch)
            if self.mirror.apply(change.partition, change.seq, life, stored=change.stored, removed=change.removed):
                n_entries[change.partition] = n_entries.get(change.partition, 0) + 1
        self._entries += sum(n_entries.values())
        return max(n_entries.values(), default=0)

    def _load_lives(self) -> None:
        for partition, life in list(self._to_load)[:LOADS_PER_ROUND]:
            self._repair(partition, life, map(join_hashes, self._changes.members_of(partition, *life)))
            del self._to_load[partition, life]

    def _check(self) -> None:
        """Compare the counts of a few partitions, while nothing changes in them; those that were busy come again."""
        now = self._clock.now()
        if not self._to_check and now >= self._check_at:
            self._check_at = now + CHECK_INTERVAL_S
            self._to_check = dict.fromkeys(self._partitions)
        for partition in list(self._to_check)[:CHECKS_PER_ROUND]:
            del self._to_check[partition]
            lives = [Life(*member) for member in self._members.items()]
            count = self._census.count(partition, self.mirror.position(partition), lives)
            if count is None:
                self._to_check[partition] = None
                continue
            for life, there in zip(lives, count.lives, strict=True):
                if there != self.mirror.count(partition, life):
                    self._to_load[partition, life] = None
            self._check_stored(partition, count.stored, now)

    def _check_stored(self, partition: int, listed: int, now: float) -> None:
        """A block that several tenants use is listed for each of them, so more may be listed than there are. How many
        more is noted at a load; a change of that is looked into, but not often."""
        known = self.mirror.count(partition, REDIS)
        surplus, loaded_at = self._surplus.get(partition, (0, now - STORED_INTERVAL_S))
        if listed - known == surplus or (listed > known and now < loaded_at + STORED_INTERVAL_S):
            return
        self._repair(partition, REDIS, self._stored(partition))
        self._surplus[partition] = (listed - self.mirror.count(partition, REDIS), now)

    def _repair(self, partition: int, life: Life, pages: Iterable[bytes]) -> None:
        before = self.mirror.count(partition, life)
        self.mirror.load_life(partition, life, list(pages))
        self._repairs += 1
        after = self.mirror.count(partition, life)
        log.info("repaired", partition=partition, node=life.node, epoch=life.epoch, before=before, after=after)
