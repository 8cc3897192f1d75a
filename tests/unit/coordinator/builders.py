"""Nodes and readings for tests, with everything a test does not care about filled in."""

from __future__ import annotations

from tiered.cluster.ledger import RedisUsage
from tiered.types import Epoch, NodeInfo, NodeStats, NodeView, TenantStats, TokenCounts


def tokens(*, hot: int = 0, peer: int = 0, redis: int = 0, missed: int = 0) -> TokenCounts:
    return TokenCounts(asked=hot + peer + redis + missed, hot=hot, peer=peer, redis=redis, missed=missed)


def redis_usage(used_bytes: int = 0, pending_bytes: int = 0, blocks: int = 0) -> RedisUsage:
    return RedisUsage(used_bytes=used_bytes, pending_bytes=pending_bytes, blocks=blocks)


def node_info(name: str, *, capacity_bytes: int = 1 << 20) -> NodeInfo:
    return NodeInfo(
        node=name,
        peer_host="10.0.0.7",
        peer_port=7400,
        metrics_port=9400,
        socket_path=f"/run/{name}.sock",
        capacity_bytes=capacity_bytes,
        version="0.1.0",
    )


def node_stats(**tenants: TenantStats) -> NodeStats:
    return NodeStats(
        pool_blocks=100, free_blocks=40, block_bytes=1024, engines=1, layout="16x2", tenants=dict(tenants)
    )


def node_view(
    name: str,
    *,
    epoch: int = 1,
    alive: bool = True,
    capacity_bytes: int = 1 << 20,
    stats: NodeStats | None = None,
) -> NodeView:
    return NodeView(
        info=node_info(name, capacity_bytes=capacity_bytes),
        epoch=Epoch(epoch),
        lease_left_s=5.0 if alive else 0.0,
        stats=stats or NodeStats(),
    )
