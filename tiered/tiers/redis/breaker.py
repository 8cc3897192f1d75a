"""When not to ask a server that does not answer. A decision: takes the time, holds no timer and asks nobody."""

from __future__ import annotations

import enum
import threading


class _State(enum.Enum):
    CLOSED = enum.auto()
    """Calls go through."""
    OPEN = enum.auto()
    """Calls are refused until the time is up."""
    PROBING = enum.auto()
    """One call is under way to see whether the server answers again."""


class Breaker:
    """Opens after a run of failures, lets one probe through after a while, closes when a call succeeds.

    Every call that was allowed reports succeeded() or failed() exactly once. Thread-safe.
    """

    def __init__(self, failures: int, open_s: float) -> None:
        self._failures_max = failures
        self._open_s = open_s
        self._lock = threading.Lock()
        self._state = _State.CLOSED
        self._failures = 0
        self._opened_at = 0.0
        self._opened_total = 0

    def allow(self, now: float) -> bool:
        with self._lock:
            if self._state is _State.OPEN and now - self._opened_at >= self._open_s:
                self._state = _State.PROBING
                return True
            return self._state is _State.CLOSED

    def succeeded(self) -> None:
        with self._lock:
            self._state = _State.CLOSED
            self._failures = 0

    def failed(self, now: float) -> None:
        """A failure while open is news from before it opened, and does not keep it open longer."""
        with self._lock:
            self._failures += 1
            opens = self._state is _State.CLOSED and self._failures >= self._failures_max
            if opens:
                self._opened_total += 1
            if opens or self._state is _State.PROBING:
                self._state = _State.OPEN
                self._opened_at = now

    @property
    def is_open(self) -> bool:
        """True from the failure that opened it to the success that closes it, probes included."""
        with self._lock:
            return self._state is not _State.CLOSED

    @property
    def opened_total(self) -> int:
        with self._lock:
            return self._opened_total
