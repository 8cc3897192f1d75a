"""The view as Prometheus families, made on each scrape.

Owns what each series of a coordinator is taken from; their names, labels and meanings are
:mod:`tiered.metrics.coordinator`'s. It keeps no numbers of its own, only which tenants have a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from coordinator.leader.leading import LeaderView
from coordinator.view.follower import MirrorFacts
from coordinator.view.snapshot import ClusterView, TenantView
from tiered.cluster.audit import Findings
from tiered.metrics import coordinator as series
from tiered.metrics.series import Series, build_info
from tiered.metrics.tenant_labels import OTHER, TenantLabels, grouped
from tiered.types import NodeView, Source

_FINDINGS: Final = ("expired", "lost", "stray", "relisted", "orphans", "idle", "stamps")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a scrape looks. findings and quiet_findings: of the last whole audit, and of the last one that nobody
    wrote during. lost: lives that this replica has struck off."""

    view: Callable[[], ClusterView]
    age_s: Callable[[], float] = lambda: 0.0
    findings: Callable[[], Findings | None] = lambda: None
    quiet_findings: Callable[[], Findings | None] = lambda: None
    mirror: Callable[[], MirrorFacts | None] = lambda: None
    standing: Callable[[], LeaderView | None] = lambda: None
    lost: Callable[[], int] = lambda: 0


class ViewCollector(Collector):
    def __init__(self, sources: Sources, labels: TenantLabels | None = None) -> None:
        self._sources = sources
        self._labels = labels or TenantLabels()

    def collect(self) -> Iterator[Metric]:
        look = self._sources
        view, standing = look.view(), look.standing()
        yield build_info(series.COORDINATOR)
        yield series.STALE.one(view.stale)
        yield series.VIEW_AGE.one(look.age_s())
        yield from _leader_families(standing)
        yield series.NODES_LOST.one(look.lost())
        yield from _tenant_families(view, self._labels)
        yield from _node_families(view)
        yield from _tier_families(view)
        if standing is None or standing.is_leader:  # who led once has findings that nobody puts right any more
            yield from _audit_families(look.findings(), look.quiet_findings())
        yield from _mirror_families(look.mirror())


def _tenant_families(view: ClusterView, labels: TenantLabels) -> Iterator[Metric]:
    tenants = {tenant.policy.tenant: tenant for tenant in view.tenants}
    label_of = labels.of({name: tenant.tokens.asked for name, tenant in tenants.items()})
    groups = grouped(tenants, label_of)
    if view.was_read:  # from a zero that nobody has counted, rate() would see all that there is come at once
        yield series.CLUSTER_TOKENS.by({name: sum(map(n, tenants.values())) for name, n in _OUTCOMES.items()})
    yield series.ASKED.by({label: sum(map(_asked, group)) for label, group in groups.items()})
    for each, numbers in _SUMS:
        yield each.of(
            {(label, split): sum(map(n, group)) for label, group in groups.items() for split, n in numbers.items()}
        )
    yield series.LIMIT.of(_limits(view, tenants, label_of))
    bounded = grouped({name: of for name, of in tenants.items() if of.hot_lent_bytes is not None}, label_of)
    yield series.SHARED_OUT.by(
        {label: sum(of.hot_lent_bytes or 0 for of in group) for label, group in bounded.items()}
    )


def _redis_excess(tenant: TenantView) -> int:
    """What it holds in Redis beyond its reservation there; negative for what it leaves to others."""
    return tenant.redis.used_bytes - tenant.policy.redis_reserved_bytes


_Number: TypeAlias = Callable[[TenantView], float]

_asked: Final = attrgetter("tokens.asked")

_OUTCOMES: Final[Mapping[str, _Number]] = {
    outcome: attrgetter(f"tokens.{outcome}") for outcome in (*map(str, Source), "missed")
}

_SUMS: Final[tuple[tuple[Series, Mapping[str, _Number]], ...]] = (
    (series.TOKENS, _OUTCOMES),
    (series.HELD, {"hot": attrgetter("hot.used_bytes"), "redis": attrgetter("redis.used_bytes")}),
    (
        series.RESERVED,
        {"hot": attrgetter("hot_reserved_in_force_bytes"), "redis": attrgetter("policy.redis_reserved_bytes")},
    ),
    (series.BORROWED, {"hot": attrgetter("hot_borrowed_bytes"), "redis": lambda of: max(0, _redis_excess(of))}),
    (series.LENT, {"hot": attrgetter("hot_idle_reserved_bytes"), "redis": lambda of: max(0, -_redis_excess(of))}),
)
"""By tenant, and by where, or by what came of it."""


def _limits(
    view: ClusterView, tenants: Mapping[str, TenantView], label_of: Mapping[str, str]
) -> dict[tuple[str, ...], float]:
    """Of those with a label of their own: what the limits of the others sum to says nothing."""
    limits: dict[tuple[str, ...], float] = {}
    for node in view.alive:
        for name, stats in node.stats.tenants.items():
            if stats.hot_limit_bytes is not None and label_of.get(name, OTHER) != OTHER:
                limits[name, "hot"] = limits.get((name, "hot"), 0) + stats.hot_limit_bytes
    for name, tenant in tenants.items():
        in_force = tenant.redis_limit_in_force_bytes
        if in_force is not None and label_of[name] != OTHER:
            limits[name, "redis"] = in_force
    return limits


def _node_families(view: ClusterView) -> Iterator[Metric]:
    yield series.NODE_UP.by({node.info.node: node.alive for node in view.nodes})
    yield series.NODE_LEASE.by({node.info.node: node.lease_left_s for node in view.nodes})
    yield series.NODE_EPOCH.by({node.info.node: node.epoch for node in view.nodes})
    yield series.NODE_ENGINES.by({node.info.node: node.stats.engines for node in view.alive})
    pool: dict[tuple[str, ...], float] = {}
    for node in view.alive:
        pool[node.info.node, "free"] = node.stats.free_blocks
        pool[node.info.node, "used"] = node.stats.pool_blocks - node.stats.free_blocks
    yield series.NODE_POOL.of(pool)


def _tier_families(view: ClusterView) -> Iterator[Metric]:
    yield series.TIER_BYTES.by({"hot": view.hot.used_bytes, "redis": view.redis.used_bytes})
    capacity: dict[str, float] = {"hot": view.hot_capacity_bytes}
    if view.redis_capacity_bytes is not None:
        capacity["redis"] = view.redis_capacity_bytes
    yield series.TIER_CAPACITY.by(capacity)
    yield series.REDIS_PENDING.one(view.redis.pending_bytes)
    yield series.HOT_DIFFERENCE.one(sum(abs(_difference(node)) for node in view.alive))


def _difference(node: NodeView) -> int:
    """Charged by the node's own books, less what its blocks are."""
    stats = node.stats
    charged = sum(tenant.hot_bytes for tenant in stats.tenants.values())
    return charged - (stats.pool_blocks - stats.free_blocks) * stats.block_bytes


def _audit_families(findings: Findings | None, quiet: Findings | None) -> Iterator[Metric]:
    """Nothing until the first audit is through."""
    if findings is not None:
        yield series.AUDIT.by({name: getattr(findings, name) for name in _FINDINGS})
        yield series.CONSERVED.one(findings.conserved is not False)
    if quiet is not None:
        yield series.REDIS_DIFFERENCE.by(_redis_differences(quiet))


def _redis_differences(quiet: Findings) -> dict[str, float]:
    charged, booked = quiet.charged, quiet.ledger  # counters: what they lack is 0
    return {
        "records": sum(abs(charged[tenant] - booked[tenant]) for tenant in charged.keys() | booked.keys()),
        "books": sum(booked.values()) - quiet.ledger_sum_bytes,
        "stored": quiet.ledger_sum_bytes - quiet.stored_bytes,
    }


def _mirror_families(facts: MirrorFacts | None) -> Iterator[Metric]:
    """Nothing of the age until the mirror was level with the directory once."""
    if facts is None:
        return
    yield series.MIRROR.by({"anywhere": facts.counts.blocks, "redis": facts.counts.in_redis})
    if facts.lag_s is not None:
        yield series.MIRROR_LAG.one(facts.lag_s)
    yield series.MIRROR_ENTRIES.one(facts.entries)
    yield series.MIRROR_RELOADS.by({"missed": facts.loads, "differed": facts.repairs})


def _leader_families(standing: LeaderView | None) -> Iterator[Metric]:
    if standing is None:
        return
    yield series.LEADER.one(standing.is_leader)
    yield series.LEADER_TOKEN.one(0 if standing.leader is None else standing.leader.token)


def build_registry(sources: Sources) -> CollectorRegistry:
    """A registry of our own: the process-wide one would carry whatever a library put there."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ViewCollector(sources))
    return registry
