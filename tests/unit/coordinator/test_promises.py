"""What may be reserved beside what others were promised, and what a coordinator finds amiss at its start."""

from __future__ import annotations

import pytest

from coordinator.leader.stock import take_stock
from coordinator.server.promises import Capacity, NodeRoom, overpromise, total_overpromise
from tests.unit.coordinator.builders import node_view
from tiered.cluster.shares import Books, Lent, Record
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import NodeId, TenantId

TWO = Capacity(nodes=(NodeRoom(100, 10), NodeRoom(200, 10)), redis_bytes=50)
NOBODY = Capacity(nodes=(), redis_bytes=None)


def red(**bounds: object) -> TenantPolicy:
    return TenantPolicy.model_validate({"tenant": "red", **bounds})


def blue(**bounds: object) -> TenantPolicy:
    return TenantPolicy.model_validate({"tenant": "blue", **bounds})


@pytest.mark.parametrize(
    ("asked", "others", "field", "reserved", "exists"),
    [
        (red(hot_total_reserved_bytes=301), [], "hot_total_reserved_bytes", 301, 300),
        (
            red(hot_total_reserved_bytes=200),
            [blue(hot_total_reserved_bytes=101)],
            "hot_total_reserved_bytes",
            301,
            300,
        ),
        (red(hot_total_reserved_bytes=201), [blue(hot_reserved_bytes=50)], "hot_total_reserved_bytes", 301, 300),
        (red(hot_reserved_bytes=60), [blue(hot_total_reserved_bytes=181)], "hot_reserved_bytes", 301, 300),
        (red(hot_reserved_blocks=6), [blue(hot_total_reserved_bytes=181)], "hot_reserved_blocks", 301, 300),
        (red(hot_reserved_bytes=60), [blue(hot_reserved_blocks=5)], "hot_reserved_bytes", 110, 100),
        (red(redis_reserved_bytes=30), [blue(redis_reserved_bytes=21)], "redis_reserved_bytes", 51, 50),
    ],
)
def test_more_than_there_is_is_refused_with_the_numbers(
    asked: TenantPolicy, others: list[TenantPolicy], field: str, reserved: int, exists: int
) -> None:
    refusal = overpromise(asked, others, TWO)
    assert refusal is not None
    assert (refusal.field, refusal.reserved_bytes, refusal.capacity_bytes) == (field, reserved, exists)
    assert str(reserved) in str(refusal)
    assert str(exists) in str(refusal)


def test_all_that_there_is_may_be_reserved() -> None:
    assert overpromise(red(hot_total_reserved_bytes=300), [], TWO) is None
    assert overpromise(red(hot_reserved_bytes=100, hot_total_reserved_bytes=100), [], TWO) is None


def test_while_no_node_is_known_nothing_is_refused_for_its_sake() -> None:
    assert overpromise(red(hot_total_reserved_bytes=1 << 60, redis_reserved_bytes=1 << 60), [], NOBODY) is None


def test_asking_for_no_more_than_before_is_never_refused_though_nodes_have_gone_since() -> None:
    before = red(hot_total_reserved_bytes=900, redis_reserved_bytes=90)
    assert overpromise(red(hot_total_reserved_bytes=900, redis_reserved_bytes=90, weight=2), [before], TWO) is None
    assert overpromise(red(hot_total_reserved_bytes=800), [before], TWO) is None
    refusal = overpromise(red(hot_total_reserved_bytes=901), [before], TWO)
    assert refusal is not None
    assert refusal.reserved_bytes == 901


def test_stock_names_what_is_left_aside_and_why() -> None:
    alive, rejoined = node_view("n1", epoch=4, capacity_bytes=100), node_view("n2", epoch=9, capacity_bytes=100)
    lapsed = node_view("n3", epoch=5, alive=False)
    books = Books(
        3,
        settled=True,
        lent={NodeId(n): Record(epoch, 3, {"red": Lent(5)}) for n, epoch in (("n1", 4), ("n2", 8), ("n3", 5))},
        unreadable={"n8": "odd"},
    )
    policies = {
        DEFAULT_TENANT: TenantPolicy(tenant=DEFAULT_TENANT),
        TenantId("red"): red(hot_total_reserved_bytes=201),
    }
    stock = take_stock(
        policies, {TenantId("blue"): "colour: odd"}, nodes=[alive, rejoined, lapsed], books=books, capacity_bytes=7
    )
    assert (stock.n_policies, stock.capacity_bytes, stock.n_shares, stock.n_lives) == (2, 7, 1, 2)
    assert [(each.what, each.name) for each in stock.dropped] == [
        ("policy", "blue"),
        ("share", "n8"),
        ("share", "n2"),
        ("share", "n3"),
        ("life", "n3"),
        ("reservation", "hot"),
    ]
    assert "epoch 8" in stock.dropped[2].why
    assert "201 bytes are reserved" in stock.dropped[-1].why
    assert "200 exist" in stock.dropped[-1].why


def test_reservations_without_any_node_are_no_overpromise_yet() -> None:
    assert total_overpromise([red(hot_total_reserved_bytes=5)], []) is None
