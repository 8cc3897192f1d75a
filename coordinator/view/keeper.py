"""Keeps the current view: reads again and again, and goes on showing the last one while Redis is away.

Owns when to read and what to show meanwhile. What is read is :mod:`coordinator.view.reader`'s business.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

from coordinator.view.reader import UNREADABLE
from coordinator.view.snapshot import ClusterView, Readings, Trouble, assemble
from tiered.clock import Clock
from tiered.errors import TierError
from tiered.log import get_logger

log = get_logger(__name__)


class ViewKeeper:
    """One writer at a time, any number of readers: a view is replaced whole and never changed."""

    def __init__(
        self, read: Callable[[], Readings], clock: Clock, *, told: Callable[[ClusterView], None] = lambda _: None
    ) -> None:
        """told: of every view that was read, one after the other."""
        self._read = read
        self._clock = clock
        self._told = told
        self._view = ClusterView()
        self._refreshing = threading.Lock()

    @property
    def view(self) -> ClusterView:
        return self._view

    def now(self) -> float:
        """By the clock of taken_at."""
        return self._clock.now()

    def age_s(self) -> float:
        return self._view.age_s(self.now())

    def refresh(self) -> ClusterView:
        """Read once, on the calling thread, and publish what came of it.

        The lock makes a caller that has just changed something read after its change: a read already under
        way ends first. Each read is bounded by the deadlines of the client.
        """
        with self._refreshing:
            was = self._view.trouble
            taken_at = self._clock.now()
            try:
                self._view = assemble(self._read(), taken_at=taken_at)
            except UNREADABLE as error:
                trouble = Trouble.NO_ANSWER if isinstance(error, TierError) else Trouble.NOT_READABLE
                reason = f"Redis could not be read ({error})"
                self._view = replace(self._view, trouble=trouble, reason=reason)
                if trouble is not was:
                    log.warning("view is stale", reason=str(error))
            else:
                self._told(self._view)
                if was is not None:
                    log.info("view is current", nodes=len(self._view.nodes), tenants=len(self._view.tenants))
            return self._view

    async def run(self, stop: asyncio.Event, *, interval_s: float) -> None:
        """Refresh every interval until told to stop."""
        while not stop.is_set():
            await asyncio.to_thread(self.refresh)
            await pause(stop, interval_s)


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait, but not longer than until the stop."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
