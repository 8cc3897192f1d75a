"""Samples for tests, with everything a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tiered.cli.bodies import (
    Alert,
    HotTier,
    HotUse,
    Node,
    NodeCounts,
    Policy,
    Pressure,
    RedisTier,
    RedisUse,
    Stats,
    Tenant,
    Tiers,
)
from tiered.cli.top.sample import Sample
from tiered.types import NodeTraffic, TokenCounts

MIB = 1 << 20


def counts(*, hot: int = 0, peer: int = 0, redis: int = 0, missed: int = 0) -> TokenCounts:
    return TokenCounts(asked=hot + peer + redis + missed, hot=hot, peer=peer, redis=redis, missed=missed)


def tenant(name: str, tokens: TokenCounts | None = None, *, hot: int = 0, pressure: Pressure | None = None) -> Tenant:
    policy = Policy(
        tenant=name,
        hot_reserved_bytes=0,
        hot_limit_bytes=None,
        redis_reserved_bytes=0,
        redis_limit_bytes=None,
        weight=1.0,
        over_quota="evict_own",
    )
    return Tenant(
        policy=policy,
        named=True,
        hot=HotUse(used_bytes=hot, blocks=hot // 4096),
        redis=RedisUse(used_bytes=0, pending_bytes=0, blocks=0),
        tokens=tokens or TokenCounts(),
        pressure=pressure or Pressure(),
    )


def node(name: str, *, epoch: int = 1, alive: bool = True, traffic: NodeTraffic | None = None) -> Node:
    return Node(
        node=name,
        epoch=epoch,
        alive=alive,
        lease_left_s=5.0 if alive else 0.0,
        peer="10.0.0.7:7400",
        metrics_port=9400,
        socket_path=f"/run/{name}.sock",
        capacity_bytes=64 * MIB,
        pool_blocks=100,
        free_blocks=40,
        block_bytes=4096,
        engines=1,
        layout="16x2",
        hot_bytes=60 * 4096,
        version="0.1.0",
        traffic=traffic or NodeTraffic(),
    )


def sample(
    at: float,
    *,
    tenants: Sequence[Tenant] = (),
    nodes: Sequence[Node] = (),
    stats: Mapping[str, object] | None = None,
    alerts: Sequence[Alert] = (),
    url: str = "http://127.0.0.1:8080",
) -> Sample:
    """The sums are those of the tenants and nodes; stats: what of them is otherwise."""
    total = TokenCounts()
    for each in tenants:
        total = total.plus(each.tokens)
    alive = [each for each in nodes if each.alive]
    made = Stats(
        tokens=total,
        by_tenant={each.policy.tenant: each.tokens for each in tenants},
        tiers=Tiers(
            hot=HotTier(
                bytes=sum(each.hot.used_bytes for each in tenants),
                blocks=sum(each.hot.blocks for each in tenants),
                capacity_bytes=sum(each.capacity_bytes for each in alive),
            ),
            redis=RedisTier(bytes=0, pending_bytes=0, blocks=0, capacity_bytes=None),
        ),
        nodes=NodeCounts(alive=len(alive), known=len(nodes)),
        stale=False,
        leader="coordinator-1",
    )
    stats_made = msgspec.structs.replace(made, **(stats or {}))
    return Sample(url, at, stats_made, list(tenants), list(nodes), alerts=alerts)
