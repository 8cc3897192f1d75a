"""The exported names, and the bound on labels."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from coordinator.metrics import ViewCollector, build_registry
from coordinator.view.follower import MirrorFacts
from coordinator.view.mirror import MirrorCounts
from coordinator.view.snapshot import ClusterView, Readings, assemble
from tests.unit.coordinator.builders import node_stats, node_view, redis_usage, tokens
from tiered.types import TenantId, TenantStats


def test_the_documented_families_are_exported() -> None:
    stats = node_stats(a=TenantStats(tokens=tokens(hot=5, peer=1, redis=2, missed=3), hot_blocks=2, hot_bytes=200))
    view = assemble(
        Readings(
            nodes=(node_view("n1", stats=stats), node_view("n2", alive=False)),
            redis={TenantId("a"): redis_usage(used_bytes=64, blocks=1)},
        ),
        taken_at=0.0,
    )
    text = generate_latest(build_registry(lambda: view)).decode()
    for line in (
        'tiered_tenant_tokens_total{outcome="hot",tenant="a"} 5.0',
        'tiered_tenant_tokens_total{outcome="peer",tenant="a"} 1.0',
        'tiered_tenant_tokens_total{outcome="redis",tenant="a"} 2.0',
        'tiered_tenant_tokens_total{outcome="missed",tenant="a"} 3.0',
        'tiered_tenant_bytes{tenant="a",tier="hot"} 200.0',
        'tiered_tenant_bytes{tenant="a",tier="redis"} 64.0',
        'tiered_node_up{node="n1"} 1.0',
        'tiered_node_up{node="n2"} 0.0',
        'tiered_node_pool_blocks{node="n1",state="free"} 40.0',
        'tiered_node_pool_blocks{node="n1",state="used"} 60.0',
        "tiered_redis_bytes 64.0",
        "tiered_view_stale 0.0",
    ):
        assert line in text.splitlines()
    assert 'tiered_build_info{python="' in text


def test_a_view_that_cannot_be_read_says_so() -> None:
    assert "tiered_view_stale 1.0" in generate_latest(build_registry(ClusterView)).decode()


def test_tenants_beyond_the_cap_are_summed_and_no_label_is_ever_taken_back() -> None:
    views = iter(
        [
            Readings(retired={TenantId("m"): tokens(hot=1), TenantId("z"): tokens(hot=2)}),
            Readings(retired={TenantId(name): tokens(hot=10) for name in ("a", "b", "m", "z")}),
        ]
    )
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: assemble(next(views), taken_at=0.0), tenant_labels_max=3))

    def hot_tokens() -> dict[str, float]:
        return {
            sample.labels["tenant"]: sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name == "tiered_tenant_tokens_total" and sample.labels["outcome"] == "hot"
        }

    assert hot_tokens() == {"default": 0.0, "m": 1.0, "z": 2.0}
    assert hot_tokens() == {"default": 0.0, "m": 10.0, "z": 10.0, "other": 20.0}


def test_the_mirror_is_exported_once_there_is_one() -> None:
    facts = MirrorFacts(MirrorCounts(blocks=70, in_redis=20), lag_s=0.25, entries=9, loads=1, repairs=2)
    registry = build_registry(lambda: ClusterView(), mirror=lambda: facts)
    assert registry.get_sample_value("tiered_mirror_blocks", {"where": "anywhere"}) == 70
    assert registry.get_sample_value("tiered_mirror_blocks", {"where": "redis"}) == 20
    assert registry.get_sample_value("tiered_mirror_lag_seconds") == 0.25
    assert registry.get_sample_value("tiered_mirror_entries_total") == 9
    assert registry.get_sample_value("tiered_mirror_reloads_total", {"cause": "missed"}) == 1
    assert registry.get_sample_value("tiered_mirror_reloads_total", {"cause": "differed"}) == 2
    young = build_registry(lambda: ClusterView(), mirror=lambda: replace(facts, lag_s=None))
    assert young.get_sample_value("tiered_mirror_lag_seconds") is None
    assert build_registry(lambda: ClusterView()).get_sample_value("tiered_mirror_blocks", {"where": "redis"}) is None
