"""Watches the tenants' policies: a change of quota takes effect here within the interval, without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tiered.cluster.tenants import Tenants
from tiered.codec.codecs import codec_for
from tiered.errors import ConfigError, TierError
from tiered.log import get_logger
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import TenantId
from worker.hot_tier import HotTier

INTERVAL_S = 0.5
"""Well within the two seconds in which a change is promised to take effect."""

_UNSAID: Final = {DEFAULT_TENANT: TenantPolicy(tenant=DEFAULT_TENANT)}

_log = get_logger("worker.tenants")


@dataclass(slots=True)
class TenantsTask:
    tenants: Tenants
    hot: HotTier
    revision: int = -1
    _policies: Mapping[TenantId, TenantPolicy] = field(default_factory=dict)
    _unjudged: bool = False
    """Whether nobody has looked yet which of their codecs suit the pool's layout."""

    async def run(self) -> None:
        """Poll one small number for ever; also the hot tier's clock tick."""
        while True:
            await self.look()
            self.judge()
            self.hot.tick()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Read the policies if they changed. The last ones stay in force while Redis is unreachable, and where a
        change cannot be read, such as one made by a later version."""
        try:
            revision = await asyncio.to_thread(self.tenants.revision)
            if revision == self.revision:
                return
            policies = await asyncio.to_thread(self.tenants.policies)
            if revision < self.revision:
                if policies == _UNSAID:  # an empty table says nothing: what tenants were promised still holds
                    _log.warning("the shared state has forgotten the policies; the last ones stay", revision=revision)
                    self.revision = revision
                    return
                _log.warning("the shared state has gone back to earlier policies", revision=revision)
        except TierError as error:
            _log.debug("policies not read; the last ones stay", error=str(error))
            return
        except ValueError as error:
            _log.error("policies cannot be understood; the last ones stay", revision=revision, error=str(error))
            self.revision = revision
            return
        self.hot.set_policies(policies)
        self.revision, self._policies, self._unjudged = revision, policies, True
        _log.info("policies in force", revision=revision, tenants=len(policies))

    def judge(self) -> None:
        """Say once which codecs do not suit this node's blocks, as soon as there are any: no policy knows them."""
        pool = self.hot.pool
        if pool is None or not self._unjudged:
            return
        self._unjudged = False
        for tenant, policy in self._policies.items():
            try:
                codec_for(policy.redis_codec, pool.layout)
            except ConfigError as error:
                _log.warning("stored lossless instead of as chosen", tenant=tenant, reason=str(error))
