"""Asks the cluster again and again on a thread of its own, so that the screen never waits for a network.

Owns when to ask. What comes of it is told; what it means is for whoever is told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tiered.cli.top.sample import Detail, Sample, Source, Subject
from tiered.cli.top.words import brief
from tiered.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Failure:
    """Nobody has answered, and why; subject None: the whole cluster was asked for."""

    reason: str
    subject: Subject | None = None


@dataclass(frozen=True, slots=True)
class Crash:
    """The thread has ended by a bug, which is to be seen where the user is."""

    error: Exception


News: TypeAlias = Sample | Detail | Failure | Crash


class Feed:
    """tell is called on the feed's thread. Ends with ``stop``; a call that is under way then is not waited for: the
    thread is a daemon, and what it would tell is not told any more."""

    def __init__(
        self,
        source: Source,
        every_s: float,
        tell: Callable[[News], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._every_s, self._tell, self._clock = source, every_s, tell, clock
        self._changed = threading.Condition()
        self._subject: Subject | None = None
        self._subject_is_new = False
        self._paused = self._ended = False
        self._due = clock() + every_s
        self._thread = threading.Thread(target=self._run, name="top-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def look_at(self, subject: Subject | None) -> None:
        """Ask for this one too, at once and with each sample from now on; None: for nothing more."""
        with self._changed:
            self._subject, self._subject_is_new = subject, subject is not None
            self._changed.notify()

    def pause(self, paused: bool) -> None:
        """A paused feed asks nothing but what is newly looked at; it asks at once when it goes on."""
        with self._changed:
            self._paused = paused
            if not paused:
                self._due = self._clock()
            self._changed.notify()

    def _run(self) -> None:
        try:
            while (turn := self._wait()) is not None:
                sampling, subject = turn
                if sampling:
                    self._say(self._sample())
                if subject is not None:
                    self._say(self._detail(subject))
        except Exception as error:
            self._say(Crash(error))

    def _wait(self) -> tuple[bool, Subject | None] | None:
        """Until there is something to ask: whether for a sample, and for which subject. None: no more."""
        with self._changed:
            while not self._ended:
                due = not self._paused and self._clock() >= self._due
                if due or self._subject_is_new:
                    self._subject_is_new = False
                    if due:
                        self._due = self._clock() + self._every_s
                    return due, self._subject
                self._changed.wait(None if self._paused else max(0.0, self._due - self._clock()))
        return None

    def _sample(self) -> News:
        try:
            return self._source.sample()
        except ConfigError as error:
            return Failure(brief(str(error)))

    def _detail(self, subject: Subject) -> News:
        try:
            return self._source.detail(subject)
        except ConfigError as error:
            return Failure(brief(str(error)), subject)

    def _say(self, news: News) -> None:
        with self._changed:
            if self._ended:
                return
        self._tell(news)
