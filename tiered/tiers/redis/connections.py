"""The raw connections of this process: lent for a while, kept while they are good, to each server its own.

Owns their number and their age; does not know what is sent on them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tiered.config import RedisSettings
from tiered.errors import TierTimeout, TierUnavailable
from tiered.tiers.redis.resp import RawConnection

_CONNECTIONS_MAX: Final = 8
"""Lent at one time. Two threads already saturate a server; the rest is for slow ones in between."""

_IDLE_MAX: Final = 32
"""Kept for later, to all servers together; beyond that the ones idle for longest go."""


class RawConnections:
    """For any number of threads; connects when there is none idle. Errors: TierUnavailable, TierTimeout."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._idle: list[tuple[str, RawConnection]] = []
        self._closed = False

    @contextmanager
    def lent(self, url: str, *, ends_at: float = math.inf) -> Iterator[RawConnection]:
        """A connection of our own to that server. It goes back only if everything sent on it was answered.

        ends_at: of the monotonic clock; no operation on the connection goes on beyond it.
        """
        timeout_s = self._settings.value_timeout_s
        left = max(0.0, min(timeout_s, ends_at - time.monotonic()))
        if not self._free.acquire(timeout=left):
            raise TierTimeout(f"redis: all {_CONNECTIONS_MAX} connections for values were busy for {left:g} s")
        try:
            connection = self._idle_one(url) or RawConnection(
                url, connect_timeout_s=self._settings.connect_timeout_s, timeout_s=timeout_s
            )
            connection.ends_at = ends_at
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._take_back(url, connection)
        finally:
            self._free.release()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _take_back(self, url: str, connection: RawConnection) -> None:
        dropped: list[RawConnection] = []
        with self._lock:
            if self._closed or not connection.is_quiet():
                dropped.append(connection)
            else:
                self._idle.append((url, connection))
                if len(self._idle) > _IDLE_MAX:
                    dropped.append(self._idle.pop(0)[1])
        for one in dropped:
            one.close()

    def _idle_one(self, url: str) -> RawConnection | None:
        """One that is still good: a server that restarted has closed those of its last life."""
        while True:
            with self._lock:
                if self._closed:
                    raise TierUnavailable("redis: the tier is closed")
                place = next((i for i in reversed(range(len(self._idle))) if self._idle[i][0] == url), None)
                if place is None:
                    return None
                _, connection = self._idle.pop(place)
            if connection.is_quiet():
                return connection
            connection.close()
