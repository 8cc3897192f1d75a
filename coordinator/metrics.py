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
        *,
        tenant_labels_max: int = TENANT_LABELS_MAX,
    ) -> None:
        self._view = view
        self._findings = findings
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
        for tenant in view.tenants:
            label = self._label(tenant.policy.tenant)
            tokens[label, Source.HOT] += tenant.tokens.hot
            tokens[label, Source.PEER] += tenant.tokens.peer
            tokens[label, Source.REDIS] += tenant.tokens.redis
            tokens[label, "missed"] += tenant.tokens.missed
            held[label, "hot"] += tenant.hot.used_bytes
            held[label, "redis"] += tenant.redis.used_bytes
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
    for name in ("expired", "lost", "stray", "relisted", "orphans", "idle"):
        settled.add_metric([name], getattr(findings, name))
    yield settled
    yield GaugeMetricFamily(
        "tiered_redis_conserved",
        "0 when in the last audit the sum over tenants, the ledger and the bytes in Redis differed, else 1.",
        float(findings.conserved is not False),
    )


def build_registry(
    view: Callable[[], ClusterView], findings: Callable[[], Findings | None] = lambda: None
) -> CollectorRegistry:
    """A registry of our own: the process-wide one would carry whatever a library put there."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ViewCollector(view, findings))
    return registry
