"""From a snapshot to Prometheus families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from tiered.cluster.announcing import AnnouncingCounters
from tiered.core.copies import SecondCopies
from tiered.core.fetch_plan import FetchDecision, PlanCounters
from tiered.journal.journal import JournalCounters
from tiered.metrics.tenant_labels import TENANT_LABELS_MAX
from tiered.metrics.timing import Timing
from tiered.seam.driver import DriverCounters
from tiered.tiers.peer import PeerCounters
from tiered.tiers.redis.counting import Asked, RedisTierCounters
from tiered.types import NodeRates, NodeStats, SecondUse, SourceRate, TenantStats, TokenCounts
from worker.engine_timings import EngineTimings
from worker.journal import JournalSnapshot
from worker.lost import LostCounters
from worker.metrics.collector import WorkerCollector
from worker.metrics.snapshot import DirectoryFacts, Standing, WhySnapshot, WorkerSnapshot, copies_snapshot
from worker.peer_server import PeerServerCounters


def snapshot(tenants: Mapping[str, TenantStats]) -> WorkerSnapshot:
    return WorkerSnapshot(
        standing=Standing("w1", 1, 4.5, 0.5, rejoins=0, connected=True, peers_alive=2),
        stats=NodeStats(tenants=dict(tenants), pool_blocks=10, block_bytes=100),
        blocks_by_state={"free": 3, "ready": 7},
        charged_bytes=700,
        timings=EngineTimings(),
        engines_refused={"version": 3, "protocol": 0, "busy": 0},
        moved=DriverCounters(),
        journal=None,
        redis=RedisTierCounters(0, {}, {}, {}, 0, 0, False, 0),
        peers=PeerCounters(blocks=0, misses={}),
        served=PeerServerCounters(),
        plans=PlanCounters(),
        directory=DirectoryFacts(AnnouncingCounters(announced_blocks=12, repairs=2), 3, differing=1),
        copies=copies_snapshot(SecondCopies(looked=9, made=3, refused=1), LostCounters(brought=5, waiting=2)),
        why=WhySnapshot(n_events=6, n_bytes=2_460, dropped=1),
    )


def samples(tenants: Mapping[str, TenantStats]) -> dict[str, float]:
    return _samples(snapshot(tenants))


def _samples(taken: WorkerSnapshot) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(WorkerCollector(lambda: taken))
    return _parsed(registry)


def _parsed(registry: CollectorRegistry) -> dict[str, float]:
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


def test_no_counter_falls_while_a_thousand_tenants_overtake_one_another() -> None:
    """Each scrape another tenant is the largest, and more of them have come."""
    seen: dict[str, TenantStats] = {}
    registry = CollectorRegistry()
    registry.register(WorkerCollector(lambda: snapshot(seen)))
    before: dict[str, float] = {}
    for turn in range(25):
        for i in range((turn + 1) * 40):
            grown = (i * 7_919 + turn * 104_729) % 1_000
            was = seen.get(f"t{i}", TenantStats())
            seen[f"t{i}"] = TenantStats(
                was.tokens.plus(TokenCounts(asked=2 * grown, hot=grown, missed=grown)),
                evicted_blocks=was.evicted_blocks + grown,
            )
        now = _parsed(registry)
        counters = {key: value for key, value in now.items() if "_total" in key}
        assert [key for key, value in before.items() if counters[key] < value] == []
        asked = sum(value for key, value in now.items() if key.startswith("tiered_asked_tokens_total"))
        found = sum(value for key, value in now.items() if key.startswith("tiered_tokens_total"))
        assert asked == found == sum(stats.tokens.asked for stats in seen.values())
        before = counters
    assert len(seen) == 1_000
    assert sum(key.startswith("tiered_asked_tokens_total") for key in before) == TENANT_LABELS_MAX + 1


def test_repairs_of_the_directory_are_counted() -> None:
    seen = samples({})
    assert seen["tiered_directory_repairs_total"] == 2
    assert seen["tiered_directory_announced_blocks_total"] == 12
    assert seen["tiered_directory_unannounced_blocks"] == 3
    assert seen["tiered_directory_differing_partitions"] == 1


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


def test_what_is_used_beyond_a_promise_is_borrowed_and_what_is_left_of_it_is_lent() -> None:
    got = samples(
        {
            "rich": TenantStats(hot_bytes=70, hot_reserved_bytes=40, hot_limit_bytes=90),
            "idle": TenantStats(hot_bytes=10, hot_reserved_bytes=40),
        }
    )
    assert (got['tiered_hot_borrowed_bytes{tenant="rich"}'], got['tiered_hot_lent_bytes{tenant="rich"}']) == (30, 0)
    assert (got['tiered_hot_borrowed_bytes{tenant="idle"}'], got['tiered_hot_lent_bytes{tenant="idle"}']) == (0, 30)
    assert got['tiered_hot_limit_bytes{tenant="rich"}'] == 90
    assert 'tiered_hot_limit_bytes{tenant="idle"}' not in got


def test_refusals_are_told_apart_by_reason() -> None:
    got = samples({"red": TenantStats(refused_blocks=5, limit_refused_blocks=2)})
    assert got['tiered_worker_engines_refused_total{reason="version"}'] == 3
    assert got['tiered_refused_blocks_total{reason="quota",tenant="red"}'] == 2
    assert got['tiered_refused_blocks_total{reason="room",tenant="red"}'] == 3


def test_what_is_conserved_differs_by_nothing_and_what_is_not_shows_by_how_much() -> None:
    got = samples({})
    assert (got["tiered_pool_difference_blocks"], got["tiered_hot_difference_bytes"]) == (0, 0)
    wrong = _samples(replace(snapshot({}), blocks_by_state={"free": 3, "ready": 6}, charged_bytes=650))
    assert (wrong["tiered_pool_difference_blocks"], wrong["tiered_hot_difference_bytes"]) == (-1, 50)


def test_damage_is_counted_by_source_and_absence_is_none() -> None:
    clean = samples({})
    assert [clean[f'tiered_damaged_blocks_total{{source="{s}"}}'] for s in ("hot", "peer", "redis", "journal")] == [
        0
    ] * 4
    got = _samples(
        replace(
            snapshot({}),
            moved=DriverCounters(torn_copies=1),
            peers=PeerCounters(blocks=0, misses={"checksum": 2, "absent": 9, "busy": 9}),
            redis=RedisTierCounters(0, {"length": 1, "scope": 2, "codec": 9, "absent": 9}, {}, {}, 0, 0, False, 0),
            journal=JournalSnapshot(JournalCounters(0, 0, 0, failing=False), 0, 0, {"corrupt": 4, "orphan": 9}),
        )
    )
    assert [got[f'tiered_damaged_blocks_total{{source="{s}"}}'] for s in ("hot", "peer", "redis", "journal")] == [
        1,
        2,
        3,
        4,
    ]


def test_a_histogram_is_cumulative_and_has_its_sum() -> None:
    took = Timing()
    for seconds in (0.00004, 0.0001, 0.3, 99.0):
        took.note(seconds)
    none = RedisTierCounters(0, {}, {}, {}, 0, 0, False, 0)
    got = _samples(replace(snapshot({}), redis=replace(none, took={Asked.LOOKUP: took}, failed={Asked.LOOKUP: 1})))
    name = "tiered_redis_call_duration_seconds"
    assert got[f'{name}_bucket{{kind="lookup",le="5e-05"}}'] == 1
    assert got[f'{name}_bucket{{kind="lookup",le="0.0001"}}'] == 2
    assert got[f'{name}_bucket{{kind="lookup",le="10.0"}}'] == 3
    assert got[f'{name}_bucket{{kind="lookup",le="+Inf"}}'] == got[f'{name}_count{{kind="lookup"}}'] == 4
    assert got[f'{name}_sum{{kind="lookup"}}'] == took.sum_s
    assert got['tiered_redis_failed_calls_total{kind="lookup"}'] == 1


def test_the_why_log_tells_what_it_keeps_and_what_it_lost() -> None:
    got = samples({})
    assert (got["tiered_why_events"], got["tiered_why_bytes"], got["tiered_why_dropped_events_total"]) == (
        6,
        2_460,
        1,
    )
