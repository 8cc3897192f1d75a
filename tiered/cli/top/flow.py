"""What was counted between two samples: differences of counters that only grow, but for restarts.

A worker that starts again begins at zero. Of a counter of one node's life, all of a new epoch's value is new; a sum
over nodes that fell since one of them began anew counts as far as it can be seen, at least zero. Nothing here is ever
negative, and asked = hot + peer + redis + missed holds in every difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from tiered.cli.bodies import Node, Pressure
from tiered.cli.top.sample import Sample
from tiered.types import NodeTraffic, TokenCounts

NO_TOKENS: Final = TokenCounts()
NO_PRESSURE: Final = Pressure()
NO_TRAFFIC: Final = NodeTraffic()


@dataclass(frozen=True, slots=True)
class TenantFlow:
    tokens: TokenCounts = NO_TOKENS
    pressure: Pressure = NO_PRESSURE


NO_TENANT_FLOW: Final = TenantFlow()


@dataclass(frozen=True, slots=True)
class Flow:
    """seconds is above 0 unless nothing was compared yet. saved_s: of prefill; None where the cluster tells none."""

    seconds: float = 0.0
    tokens: TokenCounts = NO_TOKENS
    tenants: Mapping[str, TenantFlow] = field(default_factory=dict)
    nodes: Mapping[str, NodeTraffic] = field(default_factory=dict)
    saved_s: float | None = None

    def of_tenant(self, name: str) -> TenantFlow:
        return self.tenants.get(name, NO_TENANT_FLOW)

    def of_node(self, name: str) -> NodeTraffic:
        return self.nodes.get(name, NO_TRAFFIC)

    def per_s(self, count: float) -> float | None:
        """None while there is nothing to divide by."""
        return count / self.seconds if self.seconds > 0 else None


NO_FLOW: Final = Flow()


def flow_between(earlier: Sample, later: Sample) -> Flow | None:
    """None if the later one tells of no later time, such as a replica's that is behind."""
    seconds = later.at - earlier.at
    if seconds <= 0:
        return None
    before = {tenant.policy.tenant: tenant for tenant in earlier.tenants}
    nodes_before = {node.node: node for node in earlier.nodes}
    was_of = earlier.stats.by_tenant
    tenants = {
        name: TenantFlow(tokens=tokens_since(was_of.get(name, NO_TOKENS), tokens))
        for name, tokens in later.stats.by_tenant.items()
    }
    for tenant in later.tenants:  # who says more than the sums do
        name = tenant.policy.tenant
        was = before.get(name)
        tenants[name] = TenantFlow(
            tokens=tokens_since(NO_TOKENS if was is None else was.tokens, tenant.tokens),
            pressure=pressure_since(NO_PRESSURE if was is None else was.pressure, tenant.pressure),
        )
    return Flow(
        seconds=seconds,
        tokens=tokens_since(earlier.stats.tokens, later.stats.tokens),
        tenants=tenants,
        nodes={node.node: traffic_since(nodes_before.get(node.node), node) for node in later.nodes},
        saved_s=saved_since(earlier.stats.saved_prefill_s, later.stats.saved_prefill_s),
    )


def tokens_since(earlier: TokenCounts, later: TokenCounts) -> TokenCounts:
    hot, peer, redis, missed = (
        max(0, getattr(later, name) - getattr(earlier, name)) for name in ("hot", "peer", "redis", "missed")
    )
    return TokenCounts(asked=hot + peer + redis + missed, hot=hot, peer=peer, redis=redis, missed=missed)


def pressure_since(earlier: Pressure, later: Pressure) -> Pressure:
    return _since(earlier, later)


def traffic_since(earlier: Node | None, later: Node) -> NodeTraffic:
    """breaker_open is no counter, and is as it is now. Of a node not seen before nobody knows what of it is new."""
    if earlier is None:
        return NodeTraffic(breaker_open=later.traffic.breaker_open)
    before = earlier.traffic if earlier.epoch == later.epoch else NO_TRAFFIC
    return msgspec.structs.replace(_since(before, later.traffic), breaker_open=later.traffic.breaker_open)


def saved_since(earlier: float | None, later: float | None) -> float | None:
    return None if earlier is None or later is None else max(0.0, later - earlier)


def found(tokens: TokenCounts) -> int:
    """Tokens that were asked for and somewhere."""
    return tokens.hot + tokens.peer + tokens.redis


_Counters = TypeVar("_Counters", Pressure, NodeTraffic)


def _since(earlier: _Counters, later: _Counters) -> _Counters:
    grown = {name: max(0, getattr(later, name) - getattr(earlier, name)) for name in later.__struct_fields__}
    return msgspec.structs.replace(later, **grown)
