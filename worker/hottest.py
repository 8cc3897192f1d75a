"""Looks for the prefixes used most, a few slots at a time, so that no request ever waits for it.

Owns how often. What is found is published with the node's stats.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tiered.core.hottest import Hottest
from worker.hot_tier import HotTier

SLOTS_PER_LOOK: Final = 4_096
"""About 1 ms of the loop's time."""

LOOK_INTERVAL_S: Final = 0.25
PASS_INTERVAL_S: Final = 5.0
"""Between two passes over the pool; one over a million blocks takes a minute."""


class HottestTask:
    def __init__(self, hot: HotTier) -> None:
        self._hot = hot
        self._hottest = Hottest()

    async def run(self) -> None:
        """Look for ever, from the first engine on."""
        await self._hot.made()
        while True:
            is_over = self._hottest.look(self._hot.core, SLOTS_PER_LOOK)
            self._hot.prefixes = self._hottest.found
            await asyncio.sleep(PASS_INTERVAL_S if is_over else LOOK_INTERVAL_S)
