"""The view as Prometheus families, made on each scrape.

Owns the names and labels of what the coordinator exports, which boards and alerts rely on. It keeps no
numbers of its own, only which tenants have a label.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.leader.leading import LeaderView
from coordinator.view.follower import MirrorFacts
from coordinator.view.snapshot import ClusterView
from tiered import __version__
from tiered.cluster.audit import Findings
from tiered.types import Source

TENANT_LABELS_MAX: Final = 100
"""Beyond these, tenants are summed as "other": a scrape stays small however many tenants there are."""

OTHER: Final = "other"


class ViewCollector(Collector):
    def __init__(
        self,
        view: Callable[[], ClusterView],
        findings: Callable[[], Findings | None] = lambda: None,
        mirror: Callable[[], MirrorFacts | None] = lambda: None,
        standing: Callable[[], LeaderView | None] = lambda: None,
        *,
        tenant_labels_max: int = TENANT_LABELS_MAX,
    ) -> None:
        self._view = view
        self._findings = findings
        self._mirror = mirror
        self._standing = standing
        self._tenant_labels_max = tenant_labels_max
        self._labelled: set[str] = set()

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        yield from self._tenant_families(view)
        yield from _node_families(view)
        yield GaugeMetricFamily(
            "tiered_redis_bytes", "Bytes that Redis holds for all tenants.", view.redis.used_bytes
        )
        yield from _audit_families(self._findings())
        yield from _mirror_families(self._mirror())
        yield from _leader_families(self._standing())
        yield GaugeMetricFamily(
            "tiered_view_stale", "1 while Redis cannot be read and the numbers are old.", float(view.stale)
        )
        build = GaugeMetricFamily(
            "tiered_build_info", "Which build this is; always 1.", labels=["service", "version", "python"]
        )
        build.add_metric(["coordinator", __version__, platform.python_version()], 1.0)
        yield build

    def _tenant_families(self, view: ClusterView) -> Iterator[Metric]:
        tokens: dict[tuple[str, str], int] = defaultdict(int)
        held: dict[tuple[str, str], int] = defaultdict(int)
        bounds: dict[tuple[str, str], int] = defaultdict(int)
        for tenant in view.tenants:
            label = self._label(tenant.policy.tenant)
            tokens[label, Source.HOT] += tenant.tokens.hot
            tokens[label, Source.PEER] += tenant.tokens.peer
            tokens[label, Source.REDIS] += tenant.tokens.redis
            tokens[label, "missed"] += tenant.tokens.missed
            held[label, "hot"] += tenant.hot.used_bytes
            held[label, "redis"] += tenant.redis.used_bytes
            bounds[label, "reserved"] += tenant.hot_reserved_in_force_bytes
            if tenant.hot_lent_bytes is not None:
                bounds[label, "lent"] += tenant.hot_lent_bytes
        asked = CounterMetricFamily(
            "tiered_tenant_tokens",
            "Tokens asked for, by where they were found.",
            labels=["tenant", "outcome"],
        )
        for (label, outcome), count in tokens.items():
            asked.add_metric([label, outcome], count)
        yield asked
        size = GaugeMetricFamily("tiered_tenant_bytes", "Bytes held for a tenant.", labels=["tenant", "tier"])
        for (label, tier), count in held.items():
            size.add_metric([label, tier], count)
        yield size
        in_force = GaugeMetricFamily(
            "tiered_tenant_hot_bound_bytes",
            "Over all nodes alive: what they keep for a tenant, and what they were lent of its total limit.",
            labels=["tenant", "bound"],
        )
        for (label, bound), count in bounds.items():
            in_force.add_metric([label, bound], count)
        yield in_force

    def _label(self, tenant: str) -> str:
        """The tenant's own name for the first so many seen; once given it is kept, so that no counter goes
        back.
        """
        if tenant not in self._labelled:
            if len(self._labelled) >= self._tenant_labels_max:
                return OTHER
            self._labelled.add(tenant)
        return tenant


def _node_families(view: ClusterView) -> Iterator[Metric]:
    up = GaugeMetricFamily("tiered_node_up", "1 while the node's lease runs.", labels=["node"])
    pool = GaugeMetricFamily("tiered_node_pool_blocks", "Blocks of the node's pool.", labels=["node", "state"])
    for node in view.nodes:
        up.add_metric([node.info.node], float(node.alive))
        if node.alive:
            pool.add_metric([node.info.node, "free"], node.stats.free_blocks)
            pool.add_metric([node.info.node, "used"], node.stats.pool_blocks - node.stats.free_blocks)
    yield up
    yield pool


def _audit_families(findings: Findings | None) -> Iterator[Metric]:
    """Nothing until the first audit is through; the sums are compared only where nobody wrote meanwhile."""
    if findings is None:
        return
    settled = GaugeMetricFamily(
        "tiered_redis_audit_blocks", "Blocks the last audit of the Redis tier found amiss.", labels=["finding"]
    )
    for name in ("expired", "lost", "stray", "relisted", "orphans", "idle", "stamps"):
        settled.add_metric([name], getattr(findings, name))
    yield settled
    yield GaugeMetricFamily(
        "tiered_redis_conserved",
        "0 when in the last audit the sum over tenants, the ledger and the bytes in Redis differed, else 1.",
        float(findings.conserved is not False),
    )


def _mirror_families(facts: MirrorFacts | None) -> Iterator[Metric]:
    """Nothing of the age until the mirror was level with the directory once."""
    if facts is None:
        return
    blocks = GaugeMetricFamily(
        "tiered_mirror_blocks", "Blocks this replica knows to be somewhere, and of them in Redis.", labels=["where"]
    )
    blocks.add_metric(["anywhere"], facts.counts.blocks)
    blocks.add_metric(["redis"], facts.counts.in_redis)
    yield blocks
    if facts.lag_s is not None:
        yield GaugeMetricFamily(
            "tiered_mirror_lag_seconds", "Since this replica knew all that the directory had.", facts.lag_s
        )
    yield CounterMetricFamily("tiered_mirror_entries", "Changes of the directory that were applied.", facts.entries)
    again = CounterMetricFamily(
        "tiered_mirror_reloads",
        "Partitions read again since changes were missed, and counts that differed and were put right.",
        labels=["cause"],
    )
    again.add_metric(["missed"], facts.loads)
    again.add_metric(["differed"], facts.repairs)
    yield again


def _leader_families(standing: LeaderView | None) -> Iterator[Metric]:
    if standing is None:
        return
    yield GaugeMetricFamily(
        "tiered_leader", "1 while this replica does the periodic work.", float(standing.is_leader)
    )
    yield GaugeMetricFamily(
        "tiered_leader_token",
        "Token of the reign this replica last heard of; grows with each.",
        0 if standing.leader is None else standing.leader.token,
    )


def build_registry(
    view: Callable[[], ClusterView],
    findings: Callable[[], Findings | None] = lambda: None,
    mirror: Callable[[], MirrorFacts | None] = lambda: None,
    standing: Callable[[], LeaderView | None] = lambda: None,
) -> CollectorRegistry:
    """A registry of our own: the process-wide one would carry whatever a library put there."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ViewCollector(view, findings, mirror, standing))
    return registry
