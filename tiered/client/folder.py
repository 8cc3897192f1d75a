"""Which worker an engine attaches to where several listen in one folder: one with the fewest engines.

An engine takes a seat at a worker, which is a lock on a file beside its socket. The kernel gives the seat back when
the process ends, however it ends, and engines in several containers see the same locks. Knows files and locks; what
happens on a socket is the caller's business.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from tiered.errors import TieredError, TierUnavailable

SEATS_MAX: Final = 64
"""Engines at one worker; what they share is its pool."""

STAY_S: Final = 30.0
"""A worker that is started again listens at the same path. For so long its engine waits there, so that the worker has
its engine again, rather than go to another and leave this one without."""

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

T = TypeVar("T")


class WorkersFolder:
    """Sockets ``*.sock`` of one folder. For one thread at a time. clock: monotonic seconds."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._path: Path | None = None
        self._seat = -1
        self._left_at: float | None = None
        """When the worker of our seat was first found to be away."""

    def attach(self, open_at: Callable[[str], T]) -> T:
        """What ``open_at`` gives for the socket of a worker at which we then have a seat.

        Errors: TieredError of the last socket that was tried; TierUnavailable when there is none to try.
        """
        if self._path is not None:
            try:
                opened = open_at(str(self._path))
            except TieredError:
                now = self._clock()
                self._left_at = now if self._left_at is None else self._left_at
                if now - self._left_at < STAY_S:
                    raise
                self.leave()
            else:
                self._left_at = None
                return opened
        return self._attach_anywhere(open_at)

    def leave(self) -> None:
        """Give the seat back. Harmless when done before."""
        if self._seat >= 0:
            os.close(self._seat)
        self._path, self._seat, self._left_at = None, -1, None

    def _attach_anywhere(self, open_at: Callable[[str], T]) -> T:
        error: TieredError = TierUnavailable(f"{self._folder}: no worker's socket is there")
        away: set[Path] = set()
        for number in range(1, SEATS_MAX + 1):
            for path in self._sockets():
                if path in away or (seat := _take(path, number)) is None:
                    continue
                try:
                    opened = open_at(str(path))
                except TieredError as reason:
                    os.close(seat)
                    away.add(path)
                    error = reason
                else:
                    self._path, self._seat = path, seat
                    return opened
        raise error

    def _sockets(self) -> Iterator[Path]:
        for path in sorted(self._folder.glob("*.sock")):
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(path.stat().st_mode):
                    yield path


def _take(path: Path, number: int) -> int | None:
    """A seat at a worker: the descriptor that holds it, or None when another engine has it."""
    seat = -1
    try:
        seat = os.open(path.with_name(f".{path.name}.engine-{number}"), _FLAGS, 0o600)
        fcntl.flock(seat, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(seat)
        return None
    except OSError as error:
        raise TierUnavailable(f"{path}: no seat can be taken beside it: {error.strerror}") from error
    return seat
