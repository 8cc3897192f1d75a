"""The totals lent to this node: says what it holds, takes what it is lent, and keeps that when nobody answers.

A share stays in force until a newer one of this very life arrives: while the coordinators are gone, while Redis is,
and over a rejoin. Until a tenant's first share arrives it keeps what it has here and takes nothing more
(:mod:`tiered.tenancy.ledger`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from tiered.cluster.shares import Held, Record, Report, Shares
from tiered.core.core import CacheCore
from tiered.errors import OwnershipError, TierError
from tiered.log import get_logger
from tiered.tenancy.policy import DEFAULT_TENANT, Share, TenantPolicy
from tiered.types import NodeId, TenantId
from worker.hot_tier import HotTier
from worker.membership import MembershipTask
from worker.tenants import TenantsTask

INTERVAL_S: Final = 0.5
"""Between two reports. What was taken is confirmed at once, so that others may have what it leaves."""

BEGIN_S: Final = 1.5
BEGIN_LOOK_S: Final = 0.1

_log = get_logger("worker.share")


@dataclass(slots=True)
class ShareTask:
    shares: Shares
    node: NodeId
    hot: HotTier
    membership: MembershipTask
    tenants: TenantsTask
    revision: int = 0
    """Of the record in force; of all lives of this process, since revisions grow for ever."""

    async def begin(self, *, within_s: float = BEGIN_S) -> None:
        """Where a tenant has a total, wait a moment for the first share: what is left of an earlier life in this
        node's pool is taken over only as far as shares reach. Who is lent nothing in time begins without."""
        ends_at = time.monotonic() + within_s
        while True:
            if await self.exchange() or not self._is_bounded() or time.monotonic() >= ends_at:
                return
            await asyncio.sleep(BEGIN_LOOK_S)

    def _is_bounded(self) -> bool:
        return any(policy.has_total for policy in self.hot.policies.values())

    async def run(self) -> None:
        """Report for ever."""
        while True:
            if not await self.exchange():
                await asyncio.sleep(INTERVAL_S)

    async def exchange(self) -> bool:
        """Say what is held and take what is lent; whether something new was taken."""
        report = report_of(
            self.hot.policies,
            self.hot.shares,
            None if self.hot.pool is None else self.hot.core,
            epoch=self.membership.epoch,
            revision=self.revision,
            policies_revision=self.tenants.revision,
        )
        try:
            record = await asyncio.to_thread(self.shares.exchange, self.node, report)
        except OwnershipError as error:  # the membership task joins again; what was lent stays meanwhile
            _log.debug("not a member; the last shares stay", reason=str(error))
            return False
        except TierError as error:
            _log.debug("no shares heard; the last ones stay", error=str(error))
            return False
        except msgspec.MsgspecError as error:
            _log.error("shares cannot be understood; the last ones stay", error=str(error))
            return False
        if record is None or not self._is_news(record):
            return False
        self.hot.set_shares(shares_of(record))
        self.revision = record.revision
        _log.debug("shares in force", revision=record.revision, tenants=len(record.tenants))
        return True

    def _is_news(self, record: Record) -> bool:
        """Of the life that runs now, which may have begun while the record was on its way."""
        return record.epoch == self.membership.epoch and record.revision > self.revision


def shares_of(record: Record) -> dict[TenantId, Share]:
    return {TenantId(t): Share(lent.limit_bytes, lent.reserved_bytes) for t, lent in record.tenants.items()}


def report_of(
    policies: Mapping[TenantId, TenantPolicy],
    shares: Mapping[TenantId, Share],
    core: CacheCore | None,
    *,
    epoch: int,
    revision: int,
    policies_revision: int,
) -> Report:
    """What this life has in force and uses of each total; core is None before the first engine has attached."""
    tenants: dict[str, Held] = {}
    for tenant in sorted(policies.keys() | shares.keys() | _seen(core)):
        policy = policies.get(tenant) or policies.get(DEFAULT_TENANT)
        if policy is None or not policy.has_total:
            continue
        held = _held(policy, tenant, shares.get(tenant), core)
        if tenant in policies or held != Held(0):
            tenants[tenant] = held
    return Report(epoch=epoch, revision=revision, policies=policies_revision, tenants=tenants)


def _held(policy: TenantPolicy, tenant: TenantId, share: Share | None, core: CacheCore | None) -> Held:
    if core is not None:
        used = core.ledger.used_bytes(tenant)
        counters = core.counters.get(tenant)
        wanted = 0 if counters is None else counters.wanted * core.options.block_bytes
        limit = core.ledger.limit_bytes(tenant) if policy.hot_total_limit_bytes is not None else None
        return Held(max(limit or 0, used), used, wanted)
    if policy.hot_total_limit_bytes is None or share is None or share.limit_bytes is None:
        return Held(0)
    return Held(share.limit_bytes)


def _seen(core: CacheCore | None) -> set[TenantId]:
    return set() if core is None else core.counters.keys() | {tenant for tenant, _ in core.ledger.tenants()}
