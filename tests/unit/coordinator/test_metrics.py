"""The exported names, and the bound on labels."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from coordinator.leader.leading import LeaderView
from coordinator.metrics import Sources, ViewCollector, build_registry
from coordinator.view.follower import MirrorFacts
from coordinator.view.mirror import MirrorCounts
from coordinator.view.snapshot import ClusterView, Readings, Trouble, assemble
from tests.unit.coordinator.builders import node_stats, node_view, redis_usage, tokens
from tiered.cluster.audit import Findings
from tiered.metrics.tenant_labels import TenantLabels
from tiered.tenancy.policy import TenantPolicy
from tiered.types import NodeView, TenantId, TenantStats, TokenCounts

BETWEEN = ("records", "books", "stored")


def test_the_documented_families_are_exported() -> None:
    stats = node_stats(a=TenantStats(tokens=tokens(hot=5, peer=1, redis=2, missed=3), hot_blocks=2, hot_bytes=200))
    view = assemble(
        Readings(
            nodes=(node_view("n1", stats=stats), node_view("n2", alive=False)),
            redis={TenantId("a"): redis_usage(used_bytes=64, blocks=1)},
        ),
        taken_at=0.0,
    )
    text = generate_latest(build_registry(Sources(lambda: view))).decode()
    for line in (
        'tiered_tenant_tokens_total{outcome="hot",tenant="a"} 5.0',
        'tiered_tenant_tokens_total{outcome="peer",tenant="a"} 1.0',
        'tiered_tenant_tokens_total{outcome="redis",tenant="a"} 2.0',
        'tiered_tenant_tokens_total{outcome="missed",tenant="a"} 3.0',
        'tiered_cluster_tokens_total{outcome="hot"} 5.0',
        'tiered_tenant_bytes{tenant="a",tier="hot"} 200.0',
        'tiered_tenant_bytes{tenant="a",tier="redis"} 64.0',
        'tiered_node_up{node="n1"} 1.0',
        'tiered_node_up{node="n2"} 0.0',
        'tiered_node_pool_blocks{node="n1",state="free"} 40.0',
        'tiered_node_pool_blocks{node="n1",state="used"} 60.0',
        'tiered_tier_bytes{tier="redis"} 64.0',
        "tiered_view_stale 0.0",
    ):
        assert line in text.splitlines()
    assert 'tiered_build_info{python="' in text


def test_a_view_that_cannot_be_read_says_so() -> None:
    assert "tiered_view_stale 1.0" in generate_latest(build_registry(Sources(ClusterView))).decode()


def test_sums_begin_with_what_was_read_first_not_with_zero() -> None:
    sources = [ClusterView(), assemble(Readings(retired={TenantId("a"): tokens(hot=9)}), taken_at=1.0)]
    sources.append(replace(sources[1], trouble=Trouble.NO_ANSWER))
    found = []
    for view in sources:
        registry = build_registry(Sources(lambda view=view: view))  # type: ignore[misc]
        found.append(registry.get_sample_value("tiered_cluster_tokens_total", {"outcome": "hot"}))
    assert found == [None, 9.0, 9.0]


def test_tenants_beyond_the_cap_are_summed_and_no_label_is_ever_taken_back() -> None:
    views = iter(
        [
            Readings(retired={TenantId("m"): tokens(hot=1), TenantId("z"): tokens(hot=2)}),
            Readings(retired={TenantId(name): tokens(hot=10) for name in ("a", "b", "m", "z")}),
        ]
    )
    registry = CollectorRegistry()
    registry.register(ViewCollector(Sources(lambda: assemble(next(views), taken_at=0.0)), TenantLabels(3)))

    def hot_tokens() -> dict[str, float]:
        return {
            sample.labels["tenant"]: sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name == "tiered_tenant_tokens_total" and sample.labels["outcome"] == "hot"
        }

    assert hot_tokens() == {"default": 0.0, "m": 1.0, "z": 2.0}
    assert hot_tokens() == {"default": 0.0, "m": 10.0, "z": 10.0, "other": 20.0}


def test_no_counter_falls_while_a_thousand_tenants_and_their_nodes_come_and_go() -> None:
    """In each turn a node dies and another comes; what the dead one had counted is among the retired."""
    retired: dict[TenantId, TokenCounts] = {}
    nodes: list[NodeView] = []
    registry = build_registry(
        Sources(lambda: assemble(Readings(nodes=tuple(nodes), retired=dict(retired)), taken_at=0.0))
    )
    before: dict[tuple[str, ...], float] = {}
    asked = 0
    for turn in range(20):
        if len(nodes) == 3:
            for name, stats in nodes.pop(0).stats.tenants.items():
                retired[TenantId(name)] = retired.get(TenantId(name), TokenCounts()).plus(stats.tokens)
        counts = {
            f"t{i}": tokens(hot=(i + turn) % 17, missed=i * turn % 13) for i in range(turn * 50, turn * 50 + 100)
        }
        asked += sum(count.asked for count in counts.values())
        nodes.append(node_view(f"n{turn}", stats=node_stats(**{t: TenantStats(tokens=c) for t, c in counts.items()})))
        now = {
            (sample.name, *sample.labels.values()): sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name.endswith("_tokens_total")
        }
        assert [key for key, value in before.items() if now[key] < value] == []
        for name in (
            "tiered_tenant_asked_tokens_total",
            "tiered_tenant_tokens_total",
            "tiered_cluster_tokens_total",
        ):
            assert sum(value for key, value in now.items() if key[0] == name) == asked
        before = now


def test_bounds_and_what_is_borrowed_and_lent_are_told_by_tier() -> None:
    stats = node_stats(a=TenantStats(hot_blocks=9, hot_bytes=900, hot_reserved_bytes=400, hot_limit_bytes=1_000))
    policy = TenantPolicy(
        tenant=TenantId("a"), hot_reserved_bytes=400, redis_reserved_bytes=100, redis_limit_bytes=500
    )
    view = assemble(
        Readings(
            nodes=(node_view("n1", stats=stats),),
            policies={TenantId("a"): policy},
            redis={TenantId("a"): redis_usage(used_bytes=64, blocks=1)},
        ),
        taken_at=0.0,
    )
    registry = build_registry(Sources(lambda: view))
    got = {
        (name, tier): registry.get_sample_value(f"tiered_tenant_{name}_bytes", {"tenant": "a", "tier": tier})
        for name in ("reserved", "limit", "borrowed", "lent")
        for tier in ("hot", "redis")
    }
    assert got == {
        ("reserved", "hot"): 400,
        ("reserved", "redis"): 100,
        ("limit", "hot"): 1_000,
        ("limit", "redis"): 500,
        ("borrowed", "hot"): 500,
        ("borrowed", "redis"): 0,
        ("lent", "hot"): 0,
        ("lent", "redis"): 36,
    }
    unlimited = registry.get_sample_value("tiered_tenant_limit_bytes", {"tenant": "default", "tier": "redis"})
    assert unlimited is None


def test_books_that_do_not_agree_show_by_how_much_and_stay_shown_while_others_write() -> None:
    red, blue = TenantId("red"), TenantId("blue")
    wrong = Findings(
        stored_bytes=90,
        charged=Counter({red: 50, blue: 40}),
        ledger=Counter({red: 60, blue: 30}),
        ledger_sum_bytes=95,
        is_quiet=True,
    )
    registry = build_registry(
        Sources(ClusterView, findings=lambda: Findings(lost=3), quiet_findings=lambda: wrong, lost=lambda: 2)
    )
    got = {each: registry.get_sample_value("tiered_redis_difference_bytes", {"between": each}) for each in BETWEEN}
    assert got == {"records": 20, "books": -5, "stored": 5}
    assert registry.get_sample_value("tiered_redis_audit_blocks", {"finding": "lost"}) == 3
    assert registry.get_sample_value("tiered_nodes_lost_total") == 2


def test_who_led_once_shows_no_findings_of_then() -> None:
    was = LeaderView("us", 0, None)
    registry = build_registry(Sources(ClusterView, findings=Findings, quiet_findings=Findings, standing=lambda: was))
    assert registry.get_sample_value("tiered_redis_conserved") is None
    assert registry.get_sample_value("tiered_redis_difference_bytes", {"between": "books"}) is None


def test_a_pool_that_does_not_hold_what_is_charged_for_shows() -> None:
    view = assemble(
        Readings(nodes=(node_view("n1", stats=node_stats(a=TenantStats(hot_blocks=60, hot_bytes=60 * 1_024 - 7))),)),
        taken_at=0.0,
    )
    assert build_registry(Sources(lambda: view)).get_sample_value("tiered_cluster_hot_difference_bytes") == 7


def test_the_mirror_is_exported_once_there_is_one() -> None:
    facts = MirrorFacts(MirrorCounts(blocks=70, in_redis=20), lag_s=0.25, entries=9, loads=1, repairs=2)
    registry = build_registry(Sources(ClusterView, mirror=lambda: facts))
    assert registry.get_sample_value("tiered_mirror_blocks", {"where": "anywhere"}) == 70
    assert registry.get_sample_value("tiered_mirror_blocks", {"where": "redis"}) == 20
    assert registry.get_sample_value("tiered_mirror_lag_seconds") == 0.25
    assert registry.get_sample_value("tiered_mirror_entries_total") == 9
    assert registry.get_sample_value("tiered_mirror_reloads_total", {"cause": "missed"}) == 1
    assert registry.get_sample_value("tiered_mirror_reloads_total", {"cause": "differed"}) == 2
    young = build_registry(Sources(ClusterView, mirror=lambda: replace(facts, lag_s=None)))
    assert young.get_sample_value("tiered_mirror_lag_seconds") is None
    assert build_registry(Sources(ClusterView)).get_sample_value("tiered_mirror_blocks", {"where": "redis"}) is None
