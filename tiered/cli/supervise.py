"""Which service is to be started again, and when: the part of `tiered up` that runs after the start.

A decision over services that say whether they live; it reads no clock and starts nothing but through them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tiered.errors import TieredError

FIRST_DELAY_S: Final = 0.5
MAX_DELAY_S: Final = 10.0
CALM_S: Final = 30.0
"""A service that lived this long has recovered: the next delay is the first one again."""


class Service(Protocol):
    """A process of ours that can be looked at and started again."""

    @property
    def name(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def ready(self) -> bool: ...
    @property
    def ending(self) -> str: ...
    def spawn(self) -> None: ...


class _Watch:
    """What is remembered of one service between two looks."""

    def __init__(self, service: Service, now: float) -> None:
        self.service = service
        self.started = now
        self.delay_s = FIRST_DELAY_S
        self.due: float | None = None
        self.restarting = False


class Supervisor:
    """Starts again what died: after 0.5 s, then doubling up to 10 s. One line is said for each death."""

    def __init__(self, services: Sequence[Service], *, say: Callable[[str], None], now: float) -> None:
        self._watches = [_Watch(service, now) for service in services]
        self._say = say

    def look(self, now: float) -> None:
        """Look at every service once and do what is due."""
        for watch in self._watches:
            if watch.due is not None:
                if now >= watch.due:
                    self._start_again(watch, now)
            elif not watch.service.alive:
                self._plan(watch, now, watch.service.ending)
            elif watch.restarting and watch.service.ready:
                watch.restarting = False
                self._say(f"{watch.service.name} is back")

    def _start_again(self, watch: _Watch, now: float) -> None:
        watch.started, watch.due, watch.restarting = now, None, True
        try:
            watch.service.spawn()
        except (TieredError, OSError) as error:
            self._plan(watch, now, f"could not be started: {error}")

    def _plan(self, watch: _Watch, now: float, how: str) -> None:
        if now - watch.started >= CALM_S:
            watch.delay_s = FIRST_DELAY_S
        self._say(f"{watch.service.name} died ({how}); starting it again in {watch.delay_s:g} s")
        watch.due = now + watch.delay_s
        watch.delay_s = min(watch.delay_s * 2, MAX_DELAY_S)
