"""Usage per tenant, tier and node adds up, whoever shares blocks and whichever node has just died."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.view.snapshot import ClusterView, Pressure, Readings, assemble
from tests.unit.coordinator.builders import node_view, redis_usage
from tests.unit.core.builders import BLUE, RED, World, chain
from tiered.cluster.shares import Lent, Record
from tiered.core.stats import node_stats
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import NodeId, NodeStats, NodeView, TenantId, TenantStats

OTHERS = {
    RED: TenantPolicy(tenant=RED, sharing="public", hot_limit_bytes=1_000, hot_total_limit_bytes=900),
    BLUE: TenantPolicy(tenant=BLUE, sharing="public", hot_reserved_bytes=50),
}


def shared_pool() -> NodeStats:
    """Three blocks that two tenants use together, and one more of each."""
    world = World(10)
    world.core.set_policies(OTHERS)
    trunk = chain("trunk", 3)
    world.save(trunk + chain("red", 1, scope=trunk[-1]), tenant=RED)
    world.release(world.match(trunk, tenant=BLUE))
    world.save(trunk + chain("blue", 1, scope=trunk[-1]), tenant=BLUE)
    return node_stats(world.core, engines=1, layout="")


def sums(view: ClusterView) -> dict[str, int]:
    rows: dict[str, int] = {"hot": 0, "redis": 0}
    for row in view.usage:
        rows[row.tier] += row.used_bytes
    return rows


def test_rows_sum_to_the_totals_with_shared_blocks_several_nodes_and_one_that_just_died() -> None:
    stats = shared_pool()
    assert {t: of.hot_bytes for t, of in stats.tenants.items()} == {"red": 250, "blue": 250}
    nodes = (
        node_view("n1", stats=stats),
        node_view("n2", stats=stats),
        node_view("gone", alive=False, stats=stats),
    )
    view = assemble(Readings(nodes=nodes, policies=OTHERS, redis={RED: redis_usage(70, 5, 1)}), taken_at=0.0)
    assert sums(view) == {"hot": 1_000, "redis": 70} == {"hot": view.hot.used_bytes, "redis": view.redis.used_bytes}
    for tenant in view.tenants:
        mine = [row for row in view.usage if row.tenant == tenant.policy.tenant]
        assert sum(row.used_bytes for row in mine if row.tier == "hot") == tenant.hot.used_bytes
        assert sum(row.used_bytes for row in mine if row.tier == "redis") == tenant.redis.used_bytes
    assert {row.node for row in view.usage} == {"n1", "n2", None}


@given(st.lists(st.tuples(st.booleans(), st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))), max_size=5))
def test_rows_sum_to_the_totals_whatever_nodes_say(said: list[tuple[bool, dict[str, int]]]) -> None:
    nodes = tuple(
        node_view(
            f"n{i}",
            alive=alive,
            stats=NodeStats(tenants={t: TenantStats(hot_blocks=n, hot_bytes=n * 10) for t, n in tenants.items()}),
        )
        for i, (alive, tenants) in enumerate(said)
    )
    view = assemble(Readings(nodes=nodes), taken_at=0.0)
    assert sums(view)["hot"] == view.hot.used_bytes == sum(tenant.hot.used_bytes for tenant in view.tenants)


def test_rows_show_the_bounds_in_force_where_they_hold() -> None:
    policies = {
        DEFAULT_TENANT: TenantPolicy(tenant=DEFAULT_TENANT, redis_limit_bytes=500),
        BLUE: TenantPolicy(tenant=BLUE, redis_limit_bytes=90, redis_reserved_bytes=40),
    }
    stats = NodeStats(
        tenants={"red": TenantStats(hot_blocks=1, hot_bytes=10, hot_limit_bytes=30, hot_reserved_bytes=5)}
    )
    redis = {RED: redis_usage(7, 0, 1), BLUE: redis_usage(8, 0, 1)}
    view = assemble(Readings(nodes=(node_view("n1", stats=stats),), policies=policies, redis=redis), taken_at=0.0)
    assert [(row.tenant, row.tier, row.limit_bytes, row.reserved_bytes) for row in view.usage] == [
        ("red", "hot", 30, 5),
        ("blue", "redis", 90, 40),
        ("red", "redis", 500, 0),
    ]


def in_force(nodes: tuple[NodeView, ...], lent: dict[str, Record]) -> tuple[int, int | None]:
    policy = TenantPolicy(
        tenant=RED, hot_reserved_bytes=30, hot_total_reserved_bytes=100, hot_total_limit_bytes=1_000
    )
    records = {NodeId(node): record for node, record in lent.items()}
    view = assemble(Readings(nodes=nodes, policies={TenantId(RED): policy}, lent=records), taken_at=0.0)
    red = view.tenant(RED)
    assert red is not None
    return red.hot_reserved_in_force_bytes, red.hot_lent_bytes


def test_what_is_in_force_counts_nodes_that_are_alive_under_the_life_it_was_lent_to() -> None:
    record = Record(1, 3, {"red": Lent(400, 60, 400)})
    assert in_force((node_view("a"), node_view("b")), {"a": record, "b": record}) == (120, 800)
    assert in_force((node_view("a"), node_view("b", alive=False)), {"a": record, "b": record}) == (60, 400)
    assert in_force((node_view("a"), node_view("b", epoch=2)), {"a": record, "b": record}) == (90, 400)
    assert in_force((), {"a": record}) == (0, 0)


def test_what_is_borrowed_and_what_is_idle_are_counted_node_by_node() -> None:
    """Half used here and twice used there is not "all used": what is reserved on one node is kept on that node."""
    here = TenantStats(hot_blocks=1, hot_bytes=15, hot_reserved_bytes=30)
    there = TenantStats(hot_blocks=6, hot_bytes=60, hot_reserved_bytes=30)
    nodes = (
        node_view("a", stats=NodeStats(tenants={"red": here})),
        node_view("b", stats=NodeStats(tenants={"red": there})),
        node_view("c"),
        node_view("gone", alive=False, stats=NodeStats(tenants={"red": there})),
    )
    policies = {TenantId(RED): TenantPolicy(tenant=RED, hot_reserved_bytes=30)}
    red = assemble(Readings(nodes=nodes, policies=policies), taken_at=0.0).tenant(RED)
    assert red is not None
    assert (red.hot_borrowed_bytes, red.hot_idle_reserved_bytes) == (30, 15 + 30)


def test_who_took_room_from_whom_is_summed_over_all_nodes_listed() -> None:
    stats = NodeStats(
        tenants={
            "red": TenantStats(evicted_blocks=9, reclaimed_blocks=4, refused_blocks=2),
            "blue": TenantStats(caused_blocks=4),
        }
    )
    nodes = (node_view("a", stats=stats), node_view("b", alive=False, stats=stats))
    view = assemble(Readings(nodes=nodes), taken_at=0.0)
    red, blue = view.tenant(RED), view.tenant(BLUE)
    assert red is not None
    assert blue is not None
    assert red.pressure == Pressure(evicted_blocks=18, suffered_blocks=8, refused_blocks=4)
    assert blue.pressure == Pressure(caused_blocks=8)
    assert sum(t.pressure.suffered_blocks - t.pressure.caused_blocks for t in view.tenants) == 0
