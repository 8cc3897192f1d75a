"""Ends requests to clear: once every worker has had time to see one, Redis is cleared again and the request goes.

The second time is for blocks that were on their way down when the pools were cleared.
"""

from __future__ import annotations

from typing import Final

from tiered.clock import Clock
from tiered.cluster.clears import Clears
from tiered.log import get_logger

log = get_logger(__name__)

STANDS_S: Final = 10.0
"""Workers look every half second; one that does not for so long is cut off, and its lease is over."""


class ClearTask:
    def __init__(self, clears: Clears, clock: Clock) -> None:
        self._clears = clears
        self._clock = clock
        self._first_seen: dict[int, float] = {}

    def round(self) -> None:
        """One look, blocking. Errors: UNREADABLE; what was cleared stays cleared."""
        now = self._clock.now()
        standing = self._clears.standing()
        self._first_seen = {number: self._first_seen.get(number, now) for number in standing}
        for number, request in standing.items():
            if now - self._first_seen[number] >= STANDS_S:
                late = self._clears.clear_redis(request)
                self._clears.done(number)
                log.info("cleared", what=request.what, name=request.name, late_blocks=late)
