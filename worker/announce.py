"""Tells the directory what arrived and what left, and keeps it right; off every request's path.

Owns the sending and the waiting, one thing at a time; what is to be said, compared and repaired is decided in
:mod:`tiered.cluster.announcing`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tiered.clock import Clock, SystemClock
from tiered.cluster.announcing import Announcing, AnnouncingCounters, Ask, Compare, Say
from tiered.cluster.directory import Directory
from tiered.errors import TierError, TierUnavailable
from tiered.log import get_logger
from tiered.types import BlockHash, Epoch, NodeId
from worker.hot_tier import HotTier

_log = get_logger("worker.announce")


@dataclass(slots=True)
class Announcer:
    directory: Directory
    node: NodeId
    hot: HotTier
    interval_s: float
    clock: Clock = field(default_factory=SystemClock)
    speaks_until: float = math.inf
    """When the lease of this life ends: what would be said then is kept."""
    _announcing: Announcing = field(init=False)

    def __post_init__(self) -> None:
        self._announcing = Announcing(self.directory.partitions)

    @property
    def epoch(self) -> Epoch:
        return self._announcing.epoch

    @property
    def pending_blocks(self) -> int:
        """What the directory has not heard of yet."""
        return self._announcing.pending_blocks

    @property
    def differing(self) -> int:
        """Partitions of the directory known to be wrong about this node."""
        return self._announcing.differing

    def counters(self) -> AnnouncingCounters:
        return self._announcing.counters

    def begin_life(self, epoch: Epoch, resident: Sequence[BlockHash]) -> None:
        """Forget what an older epoch had to say; announce everything that is here."""
        self.hot.drain_events()
        self._announcing.begin_life(epoch, resident, self.clock.now())

    def fall_silent(self) -> None:
        """This node is no member: until the next life begins there is nobody to speak for."""
        self._announcing.end_life()

    async def run(self) -> None:
        """Deliver for ever."""
        while True:
            await asyncio.sleep(self.interval_s)
            await self.deliver()

    async def deliver(self) -> None:
        """All that is due; what could not be done is left for the next time."""
        events = self.hot.drain_events()
        self._announcing.note(events.stored, events.removed)
        while (now := self.clock.now()) < self.speaks_until and (ask := self._announcing.next(now)) is not None:
            try:
                await self._do(ask)
            except TierError as error:
                self._announcing.failed(ask, self.clock.now())
                _log.debug("the directory was not told; later", ask=type(ask).__name__, error=str(error))
                return

    async def _do(self, ask: Ask) -> None:
        """Errors: TierError when no server answers."""
        if isinstance(ask, Say):
            heard = await asyncio.to_thread(self.directory.hear, self.node, ask.epoch, ask.announcements)
            self._announcing.heard(ask, heard)
            if None in heard:
                raise TierUnavailable("some partitions did not hear it")
        elif isinstance(ask, Compare):
            found = await asyncio.to_thread(self.directory.digests, self.node, ask.epoch)
            self._announcing.compared(ask, found, self.clock.now())
        else:
            members = await asyncio.to_thread(self.directory.members, self.node, ask.epoch, ask.partition)
            wrong = self._announcing.read(ask, members)
            if wrong:  # else only its digest was, or this life had ended meanwhile
                _log.warning("the directory was wrong; repairing it", partition=ask.partition, n_blocks=wrong)
