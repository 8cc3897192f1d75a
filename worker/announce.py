"""Batches what arrived and what left, for the directory; off every request's path.

Events are keyed by block, so a block that came and went costs one entry. When too much could not be delivered the
announcer has lost track: the worker then rejoins, and the new life announces what it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tiered.cluster.directory import Directory
from tiered.core.core import DirectoryEvents
from tiered.errors import TierError
from tiered.log import get_logger
from tiered.types import NO_EPOCH, BlockHash, Epoch, NodeId
from worker.hot_tier import HotTier

PENDING_MAX: Final = 200_000
"""Undelivered events kept: 32 MB or so; beyond it a new life is cheaper than catching up."""

_log = get_logger("worker.announce")


@dataclass(slots=True)
class Announcer:
    directory: Directory
    node: NodeId
    hot: HotTier
    interval_s: float
    epoch: Epoch = NO_EPOCH
    announced: int = 0
    lost_track: bool = False
    _pending: dict[BlockHash, bool] = field(default_factory=dict)

    def begin_life(self, epoch: Epoch, resident: Sequence[BlockHash]) -> None:
        """Forget what an older epoch had to say; announce everything that is here."""
        self.hot.drain_events()
        self.epoch = epoch
        self._pending = dict.fromkeys(resident, True)
        self.lost_track = False

    async def run(self) -> None:
        """Deliver for ever."""
        while True:
            await asyncio.sleep(self.interval_s)
            await self.deliver()

    async def deliver(self) -> None:
        """Send what is pending; what could not be sent is kept for the next time."""
        self._take(self.hot.drain_events())
        if not self._pending:
            return
        batch, self._pending = self._pending, {}
        stored = [block_hash for block_hash, here in batch.items() if here]
        removed = [block_hash for block_hash, here in batch.items() if not here]
        epoch = self.epoch
        try:
            await asyncio.to_thread(self.directory.announce, self.node, epoch, stored=stored, removed=removed)
            self.announced += len(batch)
        except TierError as error:
            _log.debug("announcement kept for later", n_blocks=len(batch), error=str(error))
            if epoch == self.epoch:  # a new life has announced everything already
                self._pending = batch | self._pending
                self._check_bound()

    def _take(self, events: DirectoryEvents) -> None:
        self._pending.update(dict.fromkeys(events.stored, True))
        self._pending.update(dict.fromkeys(events.removed, False))
        self._check_bound()

    def _check_bound(self) -> None:
        if len(self._pending) > PENDING_MAX:
            self._pending = {}
            self.lost_track = True
