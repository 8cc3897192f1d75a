"""From a snapshot to Prometheus families."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from tiered.tiers.peer import PeerCounters
from tiered.tiers.redis.tier import RedisTierCounters
from tiered.types import NodeStats, TenantStats, TokenCounts
from worker.metrics import TENANT_LABELS_MAX, WorkerCollector, WorkerSnapshot
from worker.peer_server import PeerServerCounters


def snapshot(tenants: dict[str, TenantStats]) -> WorkerSnapshot:
    return WorkerSnapshot(
        node="w1",
        version="0",
        epoch=1,
        connected=True,
        peers_alive=2,
        stats=NodeStats(tenants=tenants),
        blocks_by_state={"free": 3},
        copies_dropped=0,
        journal=None,
        redis=RedisTierCounters(0, {}, {}, {}, 0, 0, False, 0),
        peers=PeerCounters(blocks=0, misses={}),
        served=PeerServerCounters(),
    )


def samples(tenants: dict[str, TenantStats]) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(WorkerCollector(lambda: snapshot(tenants)))
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_a_snapshot_is_taken_at_each_scrape_and_none_before() -> None:
    taken = []
    registry = CollectorRegistry()
    registry.register(WorkerCollector(lambda: taken.append(1) or snapshot({})))  # type: ignore[func-returns-value]
    assert taken == []
    generate_latest(registry)
    generate_latest(registry)
    assert len(taken) == 2


def test_however_many_tenants_there_are_labels_are_bounded_and_sums_stay() -> None:
    n = TENANT_LABELS_MAX + 50
    tenants = {
        f"t{i}": TenantStats(TokenCounts(asked=2 * i, hot=i, missed=i), hot_bytes=10, evicted_blocks=1)
        for i in range(n)
    }
    got = samples(tenants)
    hot = {key: value for key, value in got.items() if key.startswith('tiered_tokens_total{outcome="hot"')}
    assert len(hot) == TENANT_LABELS_MAX + 1
    assert sum(hot.values()) == sum(range(n))
    assert hot['tiered_tokens_total{outcome="hot",tenant="other"}'] == sum(range(50))
    assert got['tiered_hot_bytes{tenant="other"}'] == 500
    assert got['tiered_evicted_blocks_total{tenant="other"}'] == 50
