"""The core's counters as one frozen snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore, TenantCounters
from tiered.estimate.sources import REDIS
from tiered.types import NodeRates, NodeStats, SecondUse, TenantId, TenantStats

NO_SECONDS: Final = SecondUse()


def node_stats(core: CacheCore, *, engines: int, layout: str, scopes: Sequence[str] = ()) -> NodeStats:
    """What this node publishes of itself. Cost: O(tenants)."""
    used = dict(core.ledger.tenants())
    nothing = TenantCounters()
    tenants: dict[str, TenantStats] = {}
    curves = {} if core.sampler is None else core.sampler.curves(now=core.now)
    for tenant in sorted(used.keys() | core.counters.keys()):
        counters = core.counters.get(tenant, nothing)
        tenants[tenant] = TenantStats(
            tokens=counters.tokens,
            hot_blocks=core.ledger.used_blocks(tenant),
            hot_bytes=used.get(tenant, 0),
            evicted_blocks=counters.evicted,
            demoted_blocks=counters.demoted,
            refused_blocks=counters.refused,
            limit_refused_blocks=counters.refused_by_limit,
            saved_s=counters.saved_s,
            reclaimed_blocks=counters.reclaimed,
            caused_blocks=counters.caused,
            wanted_bytes=counters.wanted * core.options.block_bytes,
            hot_limit_bytes=core.ledger.limit_bytes(TenantId(tenant)),
            hot_reserved_bytes=core.ledger.reserved_bytes(TenantId(tenant)),
            seconds=core.seconds.uses.get(TenantId(tenant), NO_SECONDS),
            curve=curves.get(TenantId(tenant)),
        )
    return NodeStats(
        pool_blocks=core.n_blocks,
        free_blocks=core.blocks_in(BlockState.FREE),
        block_bytes=core.options.block_bytes,
        engines=engines,
        layout=layout,
        tenants=tenants,
        scopes=tuple(scopes),
        rates=NodeRates(
            peers=core.sources.peers_rate(now=core.now),
            redis=core.sources.rate(REDIS, now=core.now),
            prefill_tokens_per_s=core.prefill.tokens_per_s,
            waiting_s=core.sources.waiting_s(now=core.now),
        ),
    )
