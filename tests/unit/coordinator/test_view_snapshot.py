"""The arithmetic of the view."""

from __future__ import annotations

from coordinator.view.snapshot import ClusterView, HotUse, Readings, UsageRow, assemble
from coordinator.view.visible import view_of_tenant
from tests.unit.coordinator.builders import node_stats, node_view, redis_usage, tokens
from tiered.tenancy.policy import TenantPolicy
from tiered.types import TenantId, TenantStats, TokenCounts

A, B = TenantId("a"), TenantId("b")


def test_totals_equal_the_sums_over_tenants_and_nodes() -> None:
    view = assemble(
        Readings(
            nodes=(
                node_view(
                    "n1",
                    stats=node_stats(
                        a=TenantStats(tokens=tokens(hot=5, missed=1), hot_blocks=2, hot_bytes=200),
                        b=TenantStats(tokens=tokens(peer=7), hot_blocks=1, hot_bytes=100),
                    ),
                ),
                node_view("n2", stats=node_stats(a=TenantStats(tokens=tokens(redis=3), hot_blocks=4, hot_bytes=400))),
            ),
            redis={
                A: redis_usage(used_bytes=10, pending_bytes=1, blocks=2),
                B: redis_usage(used_bytes=5, blocks=1),
            },
        ),
        taken_at=7.0,
    )
    assert view.tokens == tokens(hot=5, peer=7, redis=3, missed=1)
    assert view.hot == HotUse(used_bytes=700, blocks=7)
    assert view.redis == redis_usage(used_bytes=15, pending_bytes=1, blocks=3)
    assert view.hot_capacity_bytes == 2 << 20
    a = view.tenant("a")
    assert a is not None
    assert a.hot == HotUse(600, 6)
    assert a.tokens == tokens(hot=5, redis=3, missed=1)
    assert view.usage == (
        UsageRow("a", "hot", "n1", 200, 2),
        UsageRow("b", "hot", "n1", 100, 1),
        UsageRow("a", "hot", "n2", 400, 4),
        UsageRow("a", "redis", None, 10, 2),
        UsageRow("b", "redis", None, 5, 1),
    )
    assert not view.stale
    assert view.age_s(9.5) == 2.5


def test_a_tenants_tokens_stay_while_its_node_dies_and_is_retired() -> None:
    stats = node_stats(a=TenantStats(tokens=tokens(hot=8, missed=2), hot_blocks=3, hot_bytes=300))
    before = {A: tokens(peer=1)}
    alive = assemble(Readings(nodes=(node_view("n1", stats=stats),), retired=before), taken_at=0.0)
    lapsed = assemble(Readings(nodes=(node_view("n1", alive=False, stats=stats),), retired=before), taken_at=1.0)
    gone = assemble(Readings(retired={A: tokens(hot=8, peer=1, missed=2)}), taken_at=2.0)
    assert alive.tokens == lapsed.tokens == gone.tokens == tokens(hot=8, peer=1, missed=2)


def test_a_lapsed_node_holds_no_bytes_and_offers_no_capacity() -> None:
    stats = node_stats(a=TenantStats(tokens=tokens(hot=8), hot_blocks=3, hot_bytes=300))
    view = assemble(Readings(nodes=(node_view("n1", alive=False, stats=stats),)), taken_at=0.0)
    assert view.hot == HotUse()
    assert view.hot_capacity_bytes == 0
    assert view.usage == ()
    assert view.alive == ()
    assert len(view.nodes) == 1


def test_the_defaults_limit_in_redis_binds_who_has_none_of_its_own() -> None:
    policies = [
        TenantPolicy(tenant="default", redis_limit_bytes=100),
        TenantPolicy(tenant="a", redis_limit_bytes=500),
        TenantPolicy(tenant="b"),
    ]
    readings = Readings(
        policies={TenantId(policy.tenant): policy for policy in policies},
        redis={B: redis_usage(used_bytes=1, blocks=1), TenantId("c"): redis_usage(used_bytes=1, blocks=1)},
    )
    view = assemble(readings, taken_at=0.0)
    limits = {tenant.policy.tenant: tenant.redis_limit_in_force_bytes for tenant in view.tenants}
    assert limits == {"a": 500, "b": 100, "c": 100, "default": 100}
    assert {row.tenant: row.limit_bytes for row in view.usage} == {"b": 100, "c": 100}
    for name in ("b", "never seen"):
        [own] = view_of_tenant(view, TenantId(name)).tenants
        assert own.redis_limit_in_force_bytes == 100


def test_an_unnamed_tenant_lives_under_the_default_without_its_reservation() -> None:
    default = TenantPolicy(tenant="default", redis_reserved_bytes=50, redis_limit_bytes=100, weight=2.0)
    view = assemble(
        Readings(policies={TenantId("default"): default}, redis={B: redis_usage(used_bytes=1, blocks=1)}),
        taken_at=0.0,
    )
    b = view.tenant("b")
    assert b is not None
    assert not b.named
    assert b.policy == TenantPolicy(tenant="b", redis_limit_bytes=100, weight=2.0)


def test_the_default_tenant_is_always_there() -> None:
    view = assemble(Readings(), taken_at=0.0)
    assert [(tenant.policy.tenant, tenant.named) for tenant in view.tenants] == [("default", True)]
    assert view.tokens == TokenCounts()
    assert view.tenant("nobody") is None


def test_a_named_tenant_without_use_is_listed() -> None:
    policy = TenantPolicy(tenant="a", hot_limit_bytes=10)
    view = assemble(Readings(policies={A: policy}), taken_at=0.0)
    a = view.tenant("a")
    assert a is not None
    assert (a.policy, a.named, a.hot, a.redis) == (policy, True, HotUse(), redis_usage())


def test_a_view_that_was_never_read_is_stale() -> None:
    assert ClusterView().stale
    assert ClusterView().reason
