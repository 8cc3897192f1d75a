"""From a snapshot to Prometheus families."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from tiered.cluster.announcing import AnnouncingCounters
from tiered.core.copies import SecondCopies
from tiered.core.fetch_plan import FetchDecision, PlanCounters
from tiered.tiers.peer import PeerCounters
from tiered.tiers.redis.tier import RedisTierCounters
from tiered.types import NodeRates, NodeStats, SecondUse, SourceRate, TenantStats, TokenCounts
from worker.copies_metrics import copies_snapshot
from worker.lost import LostCounters
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
        plans=PlanCounters(),
        announcing=AnnouncingCounters(announced_blocks=12, repairs=2),
        unannounced_blocks=3,
        copies=copies_snapshot(SecondCopies(looked=9, made=3, refused=1), LostCounters(brought=5, waiting=2)),
    )


def samples(tenants: dict[str, TenantStats]) -> dict[str, float]:
    return _samples(snapshot(tenants))


def _samples(taken: WorkerSnapshot) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(WorkerCollector(lambda: taken))
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


def test_repairs_of_the_directory_are_counted() -> None:
    seen = samples({})
    assert seen["tiered_directory_repairs_total"] == 2
    assert seen["tiered_directory_announced_blocks_total"] == 12
    assert seen["tiered_directory_unannounced_blocks"] == 3


def test_second_copies_are_told_by_tenant_as_far_as_labels_go() -> None:
    many = {
        f"t{i:03d}": TenantStats(tokens=TokenCounts(asked=1_000 - i), seconds=SecondUse(2, 20, i))
        for i in range(TENANT_LABELS_MAX + 5)
    }
    seen = samples({**many, "once": TenantStats(tokens=TokenCounts(asked=5_000))})
    assert seen['tiered_second_blocks{tenant="t000"}'] == 2
    assert 'tiered_second_blocks{tenant="once"}' not in seen
    assert seen['tiered_second_bytes{tenant="other"}'] == 6 * 20
    assert sum(n for name, n in seen.items() if name.startswith("tiered_single_blocks{")) == sum(range(105))
    assert (seen["tiered_second_looked_blocks_total"], seen["tiered_second_made_blocks_total"]) == (9, 3)
    assert (seen["tiered_lost_brought_blocks_total"], seen["tiered_lost_waiting_blocks"]) == (5, 2)


def test_decisions_and_what_they_rest_on_are_shown() -> None:
    plans = PlanCounters(expected_s=0.5, measured_s=0.75, out_of_patience=2, probes=3)
    plans.decisions[FetchDecision.COMPUTE] = 7
    rates = NodeRates(peers=SourceRate(0.25, 5e8), prefill_tokens_per_s=900.0)
    shown = msgspec.structs.replace(NodeStats(), rates=rates)
    got = _samples(replace(snapshot({}), plans=plans, stats=shown))
    assert got['tiered_fetch_plans_total{decision="compute"}'] == 7
    assert got['tiered_fetch_plans_total{decision="fetch_all"}'] == 0
    assert got['tiered_fetch_seconds_total{kind="expected"}'] == 0.5
    assert got['tiered_fetch_seconds_total{kind="measured"}'] == 0.75
    assert (got["tiered_fetch_out_of_patience_total"], got["tiered_fetch_probes_total"]) == (2, 3)
    assert got['tiered_source_latency_seconds{source="peer"}'] == 0.25
    assert got['tiered_source_bytes_per_second{source="redis"}'] == 0
    assert got["tiered_prefill_tokens_per_second"] == 900
