"""The cluster at one moment, as plain frozen records; and the arithmetic that makes them.

Owns the sums that the API, the dashboard and the metrics show, so that all three agree. It reads no clock
and no Redis: :mod:`coordinator.view.reader` brings what was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from tiered.cluster.ledger import RedisUsage
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import NodeView, TenantId, TokenCounts

NO_TOKENS: Final = TokenCounts()
NO_REDIS: Final = RedisUsage(used_bytes=0, pending_bytes=0, blocks=0)


@dataclass(frozen=True, slots=True)
class HotUse:
    """What lies in the pools of the nodes that are alive."""

    used_bytes: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant: the policy in force, what it holds, and where its tokens were found.

    named is False for a tenant that was seen but has no policy of its own: it then lives under the default's.
    """

    policy: TenantPolicy
    named: bool
    hot: HotUse
    redis: RedisUsage
    tokens: TokenCounts


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One tenant's bytes in one place; node is None for the shared tier."""

    tenant: str
    tier: Literal["hot", "redis"]
    node: str | None
    used_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Readings:
    """What was read of the shared state, before any arithmetic."""

    nodes: tuple[NodeView, ...] = ()
    policies: Mapping[TenantId, TenantPolicy] = field(default_factory=dict)
    redis: Mapping[TenantId, RedisUsage] = field(default_factory=dict)
    retired: Mapping[TenantId, TokenCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Everything one page or one scrape may ask for. taken_at is on the replica's own clock, in seconds.

    stale says that Redis could not be read the last time; the numbers are then those of taken_at, and
    reason tells what went wrong.
    """

    nodes: tuple[NodeView, ...] = ()
    tenants: tuple[TenantView, ...] = ()
    usage: tuple[UsageRow, ...] = ()
    tokens: TokenCounts = NO_TOKENS
    hot: HotUse = HotUse()
    hot_capacity_bytes: int = 0
    redis: RedisUsage = NO_REDIS
    taken_at: float = 0.0
    stale: bool = True
    reason: str = "Redis has not been read yet"

    @property
    def alive(self) -> tuple[NodeView, ...]:
        return tuple(node for node in self.nodes if node.alive)

    def tenant(self, name: str) -> TenantView | None:
        return next((tenant for tenant in self.tenants if tenant.policy.tenant == name), None)

    def age_s(self, now: float) -> float:
        return max(0.0, now - self.taken_at)


def assemble(readings: Readings, *, taken_at: float) -> ClusterView:
    """Turn readings into the view.

    A tenant's tokens are those of every node still listed, alive or not, and those of the lives that were
    retired. A node leaves the list and joins the retired sum in one step, so the number never goes down
    when a node dies.
    """
    tokens = dict(readings.retired)
    hot: dict[TenantId, HotUse] = {}
    usage: list[UsageRow] = []
    nodes = sorted(readings.nodes, key=lambda node: node.info.node)
    for node in nodes:
        for name, stats in sorted(node.stats.tenants.items()):
            tenant = TenantId(name)
            tokens[tenant] = tokens.get(tenant, NO_TOKENS).plus(stats.tokens)
            if node.alive and stats.hot_blocks:
                held = hot.get(tenant, HotUse())
                hot[tenant] = HotUse(held.used_bytes + stats.hot_bytes, held.blocks + stats.hot_blocks)
                usage.append(UsageRow(tenant, "hot", node.info.node, stats.hot_bytes, stats.hot_blocks))
    usage += [
        UsageRow(tenant, "redis", None, use.used_bytes, use.blocks)
        for tenant, use in sorted(readings.redis.items())
        if use.blocks or use.used_bytes
    ]
    default = readings.policies.get(DEFAULT_TENANT, TenantPolicy(tenant=DEFAULT_TENANT))
    names = {DEFAULT_TENANT, *readings.policies, *readings.redis, *tokens, *hot}
    tenants = tuple(
        TenantView(
            policy=readings.policies.get(name) or default.of_unnamed(name),
            named=name in readings.policies or name == DEFAULT_TENANT,
            hot=hot.get(name, HotUse()),
            redis=readings.redis.get(name, NO_REDIS),
            tokens=tokens.get(name, NO_TOKENS),
        )
        for name in sorted(names)
    )
    return ClusterView(
        nodes=tuple(nodes),
        tenants=tenants,
        usage=tuple(usage),
        tokens=_sum_tokens(tokens.values()),
        hot=HotUse(sum(use.used_bytes for use in hot.values()), sum(use.blocks for use in hot.values())),
        hot_capacity_bytes=sum(node.info.capacity_bytes for node in nodes if node.alive),
        redis=RedisUsage(
            used_bytes=sum(use.used_bytes for use in readings.redis.values()),
            pending_bytes=sum(use.pending_bytes for use in readings.redis.values()),
            blocks=sum(use.blocks for use in readings.redis.values()),
        ),
        taken_at=taken_at,
        stale=False,
        reason="",
    )


def peer_address(node: NodeView) -> str:
    """``host:port`` of the node's block server, with an IPv6 address in brackets."""
    host = node.info.peer_host
    return f"[{host}]:{node.info.peer_port}" if ":" in host else f"{host}:{node.info.peer_port}"


def _sum_tokens(counts: Iterable[TokenCounts]) -> TokenCounts:
    total = NO_TOKENS
    for count in counts:
        total = total.plus(count)
    return total
