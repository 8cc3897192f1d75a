"""Watches the tenants' policies: a change of quota takes effect here within the interval, without a restart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tiered.cluster.tenants import Tenants
from tiered.errors import TierError
from tiered.log import get_logger
from worker.hot_tier import HotTier

INTERVAL_S = 0.5
"""Well within the two seconds in which a change is promised to take effect."""

_log = get_logger("worker.tenants")


@dataclass(slots=True)
class TenantsTask:
    tenants: Tenants
    hot: HotTier
    revision: int = -1

    async def run(self) -> None:
        """Poll one small number for ever; also the hot tier's clock tick."""
        while True:
            await self.look()
            self.hot.tick()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Read the policies if they changed. The last ones stay in force while Redis is unreachable, and where a
        change cannot be read, such as one made by a later version."""
        try:
            revision = await asyncio.to_thread(self.tenants.revision)
            if revision == self.revision:
                return
            if revision < self.revision:  # an empty table says nothing: what tenants were promised still holds
                _log.warning("the shared state has forgotten the policies; the last ones stay", revision=revision)
                self.revision = revision
                return
            policies = await asyncio.to_thread(self.tenants.policies)
        except TierError as error:
            _log.debug("policies not read; the last ones stay", error=str(error))
            return
        except ValueError as error:
            _log.error("policies cannot be understood; the last ones stay", revision=revision, error=str(error))
            self.revision = revision
            return
        self.hot.set_policies(policies)
        self.revision = revision
        _log.info("policies in force", revision=revision, tenants=len(policies))
