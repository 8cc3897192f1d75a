"""Takes out of this pool what somebody asked to have cleared everywhere.

Owns which requests were seen, and what of each is still in use: of a request only what was here when it was first
seen goes, however long that takes, so that what is saved afterwards stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tiered.cluster.clears import ClearRequest, Clears
from tiered.core.clear import Steps, Wanted, clear, of_prefix, of_scope, of_tenant, resident
from tiered.core.core import CacheCore
from tiered.errors import TierError
from tiered.log import get_logger
from tiered.types import BlockHash, TenantId
from worker.hot_tier import HotTier

POLL_S: Final = 0.5

_log = get_logger("worker.clear")
T = TypeVar("T")


@dataclass(slots=True)
class _Clearing:
    """left: blocks that were here, and are to go. tenant: who lets go of them, None for all."""

    left: list[BlockHash]
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
            await self._begin(await asyncio.to_thread(self.clears.standing))
        except TierError as error:
            _log.debug("requests to clear not read", error=str(error))
        for clearing in self._seen.values():
            clearing.left = await self._between_others(clear(self.hot.core, clearing.left, tenant=clearing.tenant))

    async def _begin(self, standing: Mapping[int, ClearRequest]) -> None:
        self._seen = {n: clearing for n, clearing in self._seen.items() if clearing.left or n in standing}
        for number, request in standing.items():
            if number not in self._seen:
                found = await self._between_others(resident(self.hot.core, _wanted(self.hot.core, request)))
                tenant = TenantId(request.name) if request.what == "tenant" else None
                self._seen[number] = _Clearing(found, tenant)
                _log.info("clearing", what=request.what, name=request.name, blocks=len(found))

    async def _between_others(self, steps: Steps[T]) -> T:
        """What comes of them; whoever else waits for the loop has a turn after each."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                done: T = end.value
                return done
            self.hot.turn()
            await asyncio.sleep(0)


def _wanted(core: CacheCore, request: ClearRequest) -> Wanted:
    if request.what == "tenant":
        return of_tenant(TenantId(request.name))
    name = bytes.fromhex(request.name)
    return of_prefix(core, BlockHash(name)) if request.what == "prefix" else of_scope(name)
