"""Where time comes from. Decisions take ``now``; only their hosts hold a Clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a clock that never goes back; its origin means nothing."""


class SystemClock:
    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that a test moves by hand."""

    def __init__(self, start_s: float = 1_000.0) -> None:
        self._now = start_s

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("a clock never goes back")
        self._now += seconds
