"""Makes this node a second place of blocks that lost their last node and lie in Redis alone, as far as it has room.

Owns the taking and the rhythm; which blocks are lost is noted by who sweeps after a dead node. Only free slots are
filled, never by evicting, and only with blocks of a model that an engine here has attached with: a lossy codec is
decoded by its layout. Prefixes come up from their beginning, since no block is held without what is before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tiered.cluster.lost import Line, LostCopies
from tiered.errors import TierError
from tiered.hashing.scope import scope_id
from tiered.journal.chains import Chain
from tiered.log import get_logger
from tiered.types import BlockHash, TenantId
from worker.elsewhere import owners
from worker.hot_tier import HotTier
from worker.warm import bring

INTERVAL_S: Final = 1.0
TAKE_BLOCKS: Final = 256
LEASE_S: Final = 30.0
"""Others leave those alone meanwhile; far more than bringing them takes, so one that died costs little."""

NOT_OURS_S: Final = 3.0
"""Until another node is offered what this one's engines do not serve: some rounds, for the others to come first."""

BRING_S: Final = 2.0
"""For one run of blocks to come up."""

_log = get_logger("worker.lost")


@dataclass(frozen=True, slots=True)
class LostCounters:
    """brought grows for the life of the worker; waiting and dropped are the cluster's, as read last."""

    brought: int = 0
    waiting: int = 0
    dropped: int = 0


@dataclass(slots=True)
class LostTask:
    hot: HotTier
    lost: LostCopies
    counters: LostCounters = field(default_factory=LostCounters)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                while await self.look() == TAKE_BLOCKS:
                    pass
            except TierError as error:
                _log.debug("lost copies: put off", error=str(error))

    async def look(self) -> int:
        """Take some and bring them up; how many were taken. Errors: TierError; then they come back by themselves."""
        hot = self.hot
        if hot.pool is None or not hot.core.two_copies:
            return 0
        waiting, dropped = await asyncio.to_thread(self.lost.counts)
        self.counters = LostCounters(self.counters.brought, waiting, dropped)
        if not waiting or hot.draining or not hot.has_room:
            return 0
        n_before = self.counters.brought
        taken = await asyncio.to_thread(self.lost.take, TAKE_BLOCKS, lease_s=LEASE_S)
        if not taken:
            return 0
        lines = await asyncio.to_thread(self.lost.lines, taken)
        # The longest first: what it brings up is the way to the others.
        offered = sorted(zip(taken, lines, strict=True), key=lambda pair: -(len(pair[1].hashes) if pair[1] else 0))
        done, not_ours, untouched = await self._bring_all(offered)
        await asyncio.to_thread(self.lost.done, done)
        await asyncio.to_thread(self.lost.put_back, not_ours, after_s=NOT_OURS_S)
        await asyncio.to_thread(self.lost.put_back, untouched)
        if (n_blocks := self.counters.brought - n_before) > 0:
            _log.info("became the second place of lost blocks", n_blocks=n_blocks)
        return 0 if untouched else len(taken)

    async def _bring_all(
        self, offered: Sequence[tuple[BlockHash, Line | None]]
    ) -> tuple[list[BlockHash], list[BlockHash], list[BlockHash]]:
        """Those that are seen to, those of other models, and those there was no room for. The rest did not come, such
        as for its tenant's limit here, and is offered again when the lease is over."""
        core, done, not_ours = self.hot.core, list[BlockHash](), list[BlockHash]()
        for index, (block_hash, line) in enumerate(offered):
            if line is None or core.index.find(block_hash) is not None or any(owners(self.hot, line.where)):
                done.append(block_hash)
            elif (tenant := self._tenant_of(line)) is None:
                not_ours.append(block_hash)
            elif not await self._bring(line, tenant):
                return done, not_ours, [h for h, _ in offered[index:]]
            elif core.index.find(block_hash) is not None:
                done.append(block_hash)
        return done, not_ours, []

    async def _bring(self, line: Line, tenant: TenantId) -> bool:
        """As much of a prefix as comes; False once there is no more room, or Redis does not answer."""
        chain = Chain(line.scope_id, (tenant,), line.hashes, n_known=0)
        while True:
            came = await bring(self.hot, chain, deadline_s=BRING_S, live=self.hot.live_peers)
            if not came:
                return came is not None and self.hot.has_room
            before = self.counters
            self.counters = LostCounters(before.brought + came, before.waiting, before.dropped)

    def _tenant_of(self, line: Line) -> TenantId | None:
        """Whose a block of a model served here is, who asks for two copies first; None for one of another model."""
        two, scopes = self.hot.core.two_copies, self.hot.scopes
        for tenant in sorted(line.tenants, key=lambda tenant: not two.asked_by(tenant)):
            label = self.hot.label_of(tenant)
            if any(scope_id(scope, label=label) == line.scope_id for scope in scopes):
                return tenant
        return None
