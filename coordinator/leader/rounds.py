"""Does a piece of periodic work round after round until told to stop; Redis being away only puts a round off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.view.keeper import pause
from coordinator.view.reader import UNREADABLE
from tiered.log import get_logger

log = get_logger(__name__)

_LOOK_S = 0.1
"""How soon who begins to lead also begins to work."""


async def every(
    interval_s: float,
    round_: Callable[[], None],
    *,
    what: str,
    stop: asyncio.Event,
    may: Callable[[], bool] = lambda: True,
) -> None:
    """round_: bounded and blocking, so it runs in a thread; it may raise UNREADABLE. what: the work, for the log.

    may: whether a round may begin now, asked until it may.
    """
    while not stop.is_set():
        if not may():
            await pause(stop, min(_LOOK_S, interval_s))
            continue
        try:
            await asyncio.to_thread(round_)
        except UNREADABLE as error:
            log.warning("put off", what=what, reason=str(error))
        await pause(stop, interval_s)
