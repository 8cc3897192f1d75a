"""Feeds the journal, and once there is a pool warms up the hottest blocks that were not adopted, as Redis has them.

Warming up takes free slots only, one run of blocks at a time, and ends for good as soon as an engine finds no room.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tiered.core.origins import origins_of
from tiered.core.warm import open_warm, wanted
from tiered.errors import TierError
from tiered.jobs import PeerAddress
from tiered.journal.chains import Chain, hottest_chains
from tiered.journal.journal import BATCH_S
from tiered.log import get_logger
from tiered.types import NodeId
from worker.hot_tier import LEND_LEASE_S, OWN_CONNECTION, HotTier
from worker.journal import HotJournal

WARM_BYTES_MAX: Final = 512 << 20
WARM_S: Final = 2.0
"""Long enough for those bytes from a server nearby, short enough that nobody takes it for traffic."""

CHAINS_MAX: Final = 1_024
MISSES_MAX: Final = 64
"""Chains in a row of which Redis has nothing: it has lost what the journal remembers."""

USES_EVERY: Final = 10
"""Turns between two reports of uses: they change what is warm, not what is right."""

NOBODY: Final[Mapping[NodeId, PeerAddress]] = {}

_log = get_logger("worker.journal")


@dataclass(slots=True)
class JournalTask:
    hot: HotTier
    journal: HotJournal

    async def run(self) -> None:
        """Hand changes on for ever; warm up beside that."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            group.create_task(self._warm())

    async def _write(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(BATCH_S)
            turn += 1
            self.hot.write_journal(uses=turn % USES_EVERY == 0)

    async def _warm(self) -> None:
        pool = await self.hot.made()
        rows = self.journal.take_rows()
        resident = frozenset(self.hot.resident_hashes())
        # Choosing is a walk over tens of thousands of rows: not on the loop.
        chains = await asyncio.to_thread(lambda: list(islice(hottest_chains(rows, resident), CHAINS_MAX)))
        if chains:
            await self._bring(chains, n_blocks=WARM_BYTES_MAX // pool.layout.block_bytes)
            _log.info("warmed up from Redis", n_blocks=self.journal.warmed, n_chains=len(chains))

    async def _bring(self, chains: Iterable[Chain], *, n_blocks: int) -> None:
        ends_at, misses = time.monotonic() + WARM_S, 0
        for chain in chains:
            n_before = self.journal.warmed
            while True:
                left_s = ends_at - time.monotonic()
                if left_s <= 0 or self.journal.warmed >= n_blocks:
                    return
                came = await bring(self.hot, chain, deadline_s=left_s)
                if came is None:
                    return
                if came == 0:
                    break
                self.journal.warmed += came
            misses = misses + 1 if self.journal.warmed == n_before else 0
            if misses == MISSES_MAX:
                return


async def bring(
    hot: HotTier, chain: Chain, *, deadline_s: float, live: Mapping[NodeId, PeerAddress] = NOBODY
) -> int | None:
    """Bring the next blocks of a chain from Redis, or from those nodes, into free slots; how many came. None where it
    is over: an engine needs the room, or Redis does not answer."""
    core, tenant = hot.core, chain.tenants[0]
    if not hot.has_room:
        return None
    below = wanted(core, chain.hashes, tenant=tenant)
    if not below:
        return 0
    try:
        whereabouts = await hot.lookup(below)
    except TierError:
        return None
    lease = open_warm(
        core,
        chain.hashes,
        below,
        origins_of(whereabouts, live=live),
        tenant=tenant,
        scope_id=chain.scope_id,
        connection=OWN_CONNECTION,
        expires_at=hot.clock.now() + LEND_LEASE_S,
    )
    if lease is None:
        return 0
    n_before = len(lease.pinned)
    await hot.load(lease, deadline_s=deadline_s)
    n_came = len(lease.pinned) - n_before
    hot.release(lease.lease_id, connection=OWN_CONNECTION, used_tokens=0)
    return n_came
