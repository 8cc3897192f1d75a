"""Keeps the blocks of tenants that ask for two copies in two places: looks at all of them, slice by slice, and sends
to Redis what no other place has.

Owns the rhythm and the asking; what is due is decided in :mod:`tiered.core.second`. A block that has just become
whole is on its way down by itself, so this finds what was lost: a Redis that forgot its value, an owner that died, a
copy that was refused or found no staging buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiered.core.second import due, next_slice, note_place, note_tried, were_copied
from tiered.errors import TierError
from tiered.log import get_logger
from tiered.types import BlockHash, NodeId, Whereabouts
from worker.elsewhere import alone, copy_down, owners, places_of
from worker.hot_tier import HotTier

INTERVAL_S: Final = 1.0

SETTLE_S: Final = 1.0
"""For copies that are on their way already to arrive, before what they are of is taken for lost."""

COPY_BLOCKS_MAX: Final = 256
"""Sent down before it is looked what became of them: a tenant of whom Redis takes none is then left alone."""

NOTED_AT_ONCE: Final = 256

COPY_PART: Final = 0.5
"""Of the copies under way at once: the others are for blocks that leave so that an engine has room."""

_log = get_logger("worker.second")


@dataclass(slots=True)
class SecondCopiesTask:
    node: NodeId
    hot: HotTier

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """One slice of the pool. What cannot be asked is looked at again the next time."""
        if self.hot.pool is None or self.hot.draining:  # a drain sees to what is in no other place
            return
        core = self.hot.core
        if not core.two_copies:
            core.seconds.uses = {}
            return
        part = next_slice(core)
        try:
            places = await self._see_to(part.hashes)
        except TierError as error:
            core.seconds.cursor = part.begins
            _log.debug("second copies: put off", error=str(error))
            return
        singles = frozenset(alone(self.hot, places))
        for index, (block_hash, where) in enumerate(places.items()):
            if index % NOTED_AT_ONCE == 0:
                await asyncio.sleep(0)  # so that nobody waits for all of them
            note_place(
                core,
                block_hash,
                stored_bytes=where.stored_bytes if where.in_redis else None,
                is_single=block_hash in singles,
                counts_here=all(self.node < other for other in owners(self.hot, where)),
            )
        if part.ends_turn:
            core.seconds.end_turn(self.hot.clock.now())

    async def _see_to(self, hashes: Sequence[BlockHash]) -> Mapping[BlockHash, Whereabouts]:
        """Where they are, once those in no other place were sent to one. Errors: TierError."""
        places = await places_of(self.hot, hashes)
        singles = alone(self.hot, places)
        if singles:
            await self.hot.copied(timeout_s=SETTLE_S)
            places |= await places_of(self.hot, singles)
            singles = self.hot.by_depth(alone(self.hot, {block_hash: places[block_hash] for block_hash in singles}))
        core = self.hot.core
        n_made = core.seconds.made
        for start in range(0, len(singles), COPY_BLOCKS_MAX):
            wanted = due(core, singles[start : start + COPY_BLOCKS_MAX], now=self.hot.clock.now())
            if wanted:
                places |= await self._send(wanted)
        if core.seconds.made > n_made:
            _log.info("made second copies", n_blocks=core.seconds.made - n_made, n_single=len(singles))
        return places

    async def _send(self, wanted: Sequence[BlockHash]) -> Mapping[BlockHash, Whereabouts]:
        core = self.hot.core
        again = were_copied(core, wanted)
        await copy_down(self.hot, wanted, part=COPY_PART)
        places = await places_of(self.hot, wanted)
        note_tried(core, wanted, missing=frozenset(alone(self.hot, places)), again=again, now=self.hot.clock.now())
        return places
