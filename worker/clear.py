"""Takes out of this pool what somebody asked to have cleared everywhere.

Owns which requests were seen, and what of each is still in use: of a request only what was here when it was first
seen goes, however long that takes, so that what is saved afterwards stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tiered.cluster.clears import ClearRequest, Clears
from tiered.core.clear import blocks_of_prefix, blocks_of_scope, blocks_of_tenant, clear
from tiered.core.core import CacheCore
from tiered.errors import TierError
from tiered.log import get_logger
from tiered.types import BlockHash, TenantId
from worker.hot_tier import HotTier

POLL_S: Final = 0.5

_log = get_logger("worker.clear")


@dataclass(slots=True)
class _Clearing:
    """left: blocks that were here, and were in use. tenant: who lets go of them, None for all."""

    left: set[BlockHash]
    tenant: TenantId | None


@dataclass(slots=True)
class ClearTask:
    clears: Clears
    hot: HotTier
    _seen: dict[int, _Clearing] = field(default_factory=dict)

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Begin with what is asked and was not seen yet, and go on with what is left of the rest."""
        if self.hot.pool is None:
            return
        try:
            self._begin(await asyncio.to_thread(self.clears.standing))
        except TierError as error:
            _log.debug("requests to clear not read", error=str(error))
        core = self.hot.core
        for clearing in self._seen.values():
            clearing.left = clear(core, clearing.left, tenant=clearing.tenant)
        self.hot.turn()

    def _begin(self, standing: Mapping[int, ClearRequest]) -> None:
        self._seen = {n: clearing for n, clearing in self._seen.items() if clearing.left or n in standing}
        for number, request in standing.items():
            if number not in self._seen:
                self._seen[number] = _clearing(self.hot.core, request)
                _log.info("clearing", what=request.what, name=request.name, blocks=len(self._seen[number].left))


def _clearing(core: CacheCore, request: ClearRequest) -> _Clearing:
    if request.what == "tenant":
        tenant = TenantId(request.name)
        return _Clearing(blocks_of_tenant(core, tenant), tenant)
    name = bytes.fromhex(request.name)
    if request.what == "prefix":
        return _Clearing(blocks_of_prefix(core, BlockHash(name)), None)
    return _Clearing(blocks_of_scope(core, name), None)
