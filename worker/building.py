"""Makes what exists once the first engine has said its layout: the pool, the core over it, the seam, its threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tiered.config import PoolSettings
from tiered.core.core import CacheCore
from tiered.core.options import core_options, pool_blocks
from tiered.core.why import Noting, WhyLog
from tiered.curve.sampler import Sampler
from tiered.errors import ConfigError
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.seam.driver import Driver
from tiered.seam.handoff import Handoff
from tiered.tenancy.policy import Share, TenantPolicy
from tiered.tiers.peer import PeerTier
from tiered.tiers.redis.tier import RedisTier
from tiered.types import TenantId
from worker.journal import HotJournal

QUEUE_JOBS_MAX = 256


@dataclass(slots=True)
class Built:
    """What exists once the layout is known. scope: the first engine's."""

    scope: ModelScope
    pool: BlockPool
    core: CacheCore
    handoff: Handoff
    driver: Driver


def make(
    settings: PoolSettings,
    layout: KvLayout,
    journal: HotJournal | None,
    policies: Mapping[TenantId, TenantPolicy],
    shares: Mapping[TenantId, Share],
) -> tuple[CacheCore, BlockPool]:
    """Core and pool, with what a journal has of an earlier life. Takes seconds. Errors: ConfigError."""
    n_blocks = pool_blocks(settings, layout)
    if n_blocks < 1:
        raise ConfigError(
            f"pool.bytes: {settings.bytes} bytes hold no block of {layout.block_bytes} bytes; give more",
            field="pool.bytes",
        )
    options = core_options(settings, layout, n_blocks, lower_tier=True)

    def new_core() -> CacheCore:
        core = CacheCore(options, n_blocks)
        core.why = WhyLog()
        core.sampler = Sampler(layout.block_tokens)
        core.set_policies(policies, shares)
        return core

    try:
        if journal is not None:
            return journal.make_pool(new_core, layout, n_blocks, device=settings.device)
        pool = BlockPool(layout, n_blocks, device=settings.device)
        return new_core(), pool  # in this order: a pool that cannot be must not cost the table of its blocks
    except RuntimeError as error:  # torch's way of saying that the device has no memory left, among others
        raise ConfigError(
            f"pool.bytes: {settings.device} does not give {n_blocks * layout.block_bytes} bytes: {error}",
            field="pool.bytes",
        ) from error


def build(
    scope: ModelScope,
    core: CacheCore,
    pool: BlockPool,
    *,
    redis: RedisTier,
    peers: PeerTier,
    notify: Callable[[], None],
    why: Noting | None = None,
) -> Built:
    """Start the movers. notify: called from their threads after each completion."""
    handoff = Handoff(queue_jobs_max=QUEUE_JOBS_MAX, notify=notify)
    driver = Driver(pool, handoff, redis=redis, peers=peers, staging_blocks=core.options.leaving_max, why=why)
    return Built(scope, pool, core, handoff, driver)
