"""How the dashboard words the numbers."""

from __future__ import annotations

import pytest

from coordinator.dashboard.snapshot import count, dashboard_view, size
from coordinator.view.snapshot import ClusterView, Readings, assemble
from tests.unit.coordinator.builders import node_stats, node_view, redis_usage, tokens
from tiered.tenancy.policy import TenantPolicy
from tiered.types import TenantId, TenantStats


def test_shares_are_of_the_tokens_asked_and_bytes_stand_beside_their_limits() -> None:
    stats = node_stats(a=TenantStats(tokens=tokens(hot=50, peer=25, missed=25), hot_blocks=1, hot_bytes=2048))
    view = assemble(
        Readings(
            nodes=(node_view("n1", stats=stats),),
            policies={TenantId("a"): TenantPolicy(tenant="a", hot_limit_bytes=4096)},
            redis={TenantId("a"): redis_usage(used_bytes=1536, blocks=1)},
        ),
        taken_at=0.0,
    )
    shown = dashboard_view(view, age_s=0.0)
    row = next(row for row in shown.tenants if row["tenant"] == "a")
    assert (row["hot_share"], row["peer_share"], row["redis_share"], row["missed_share"]) == (
        50.0,
        25.0,
        0.0,
        25.0,
    )
    assert (row["hot_text"], row["hot_limit"]) == ("2.0 KiB", "of 4.0 KiB per node")
    assert (row["redis_text"], row["redis_limit"]) == ("1.5 KiB", "no limit")
    assert shown.nodes[0]["pool"] == "60 of 100"
    assert shown.state == "1 node alive"
    assert shown.warning == ""
    assert next(tile for tile in shown.tiles if tile.label == "Missed").filled == 0.25


def test_a_stale_view_warns_with_its_age_and_the_reason() -> None:
    shown = dashboard_view(ClusterView(reason="Redis could not be read: refused"), age_s=12.0)
    assert "12.0 s old" in shown.warning
    assert "refused" in shown.warning


def test_an_empty_cluster_divides_by_nothing() -> None:
    shown = dashboard_view(assemble(Readings(), taken_at=0.0), age_s=0.0)
    assert shown.state == "0 nodes alive"
    assert all(not tile.filled for tile in shown.tiles)


def test_a_lapsed_node_is_told_apart() -> None:
    view = assemble(Readings(nodes=(node_view("n1"), node_view("n2", alive=False))), taken_at=0.0)
    shown = dashboard_view(view, age_s=0.0)
    assert shown.state == "1 node alive, 1 lapsed"
    assert [(row["state"], row["lease"]) for row in shown.nodes] == [("alive", "5.0 s"), ("lapsed", "-")]


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (256 << 20, "256 MiB"),
        (3 << 50, "3.0 PiB"),
        (5 << 60, "5120 PiB"),
    ],
)
def test_sizes_are_worded_in_binary_units(n_bytes: int, text: str) -> None:
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0"), (9_999, "9999"), (12_345, "12.3k"), (1_234_567, "1.23M"), (2_000_000_000, "2G")]
)
def test_counts_are_short_from_ten_thousand_on(n: int, text: str) -> None:
    assert count(n) == text
