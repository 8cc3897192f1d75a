from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.cluster.bounds import (
    CAPACITY,
    PartitionBooks,
    even,
    fitted,
    is_dealt,
    missing,
    plan,
    plan_move,
    shared_out,
)
from tiered.tenancy.policy import TenantPolicy
from tiered.types import TenantId

RED = TenantId("red")
BYTES = st.integers(0, 1000)


def books(*held_and_limit: tuple[int, int | None], name: str = "red") -> list[PartitionBooks]:
    return [
        PartitionBooks({} if limit is None else {name: str(limit)}, {name: held}) for held, limit in held_and_limit
    ]


@given(total=BYTES, n=st.integers(1, 16))
def test_even_parts_add_up_and_differ_by_at_most_one(total: int, n: int) -> None:
    assert sum(even(total, n)) == total
    assert max(even(total, n)) - min(even(total, n)) <= 1


@given(total=BYTES, held=st.lists(BYTES, min_size=1, max_size=8))
def test_a_deal_adds_up_and_lets_nobody_grow_who_owes(total: int, held: list[int]) -> None:
    parts = fitted(total, held)
    assert sum(parts) == total
    if sum(held) <= total:
        assert all(part >= h for part, h in zip(parts, held, strict=True))
    else:
        assert all(part <= h + 1 for part, h in zip(parts, held, strict=True))


def test_a_deal_gives_each_partition_what_it_holds_and_an_equal_part_of_the_rest() -> None:
    policies = {RED: TenantPolicy(tenant="red", redis_limit_bytes=100, redis_reserved_bytes=3)}
    deal = plan(policies, None, books((10, 50), (30, 50)))
    assert deal.limits == {"red": [40, 60]}
    assert deal.other == [
        {"o:red": "evict_own", "w:red": "1.0", "r:red": "2"},
        {"o:red": "evict_own", "w:red": "1.0", "r:red": "1"},
    ]


def test_who_has_moved_allotment_under_the_default_limit_is_dealt_its_own() -> None:
    policies = {TenantId("default"): TenantPolicy(tenant="default", redis_limit_bytes=100)}
    deal = plan(policies, 50, books((60, 70), (0, 30)))
    assert deal.limits == {"*": [50, 50], "red": [80, 20], CAPACITY: [25, 25]}


@pytest.mark.parametrize(
    ("second", "dealt"),
    [("40", True), ("39", False), ("41", False), (None, False)],
)
def test_bounds_are_dealt_when_they_add_up_to_the_byte(second: str | None, dealt: bool) -> None:
    policies = {RED: TenantPolicy(tenant="red", redis_limit_bytes=100)}
    own = {"o:red": "evict_own", "w:red": "1.0", ":deal": "1"}
    other = own | ({} if second is None else {"red": second})
    assert is_dealt(policies, None, [PartitionBooks(own | {"red": "60"}, {}), PartitionBooks(other, {})]) is dealt


def test_bounds_of_who_has_no_policy_any_more_are_not_dealt() -> None:
    assert is_dealt({}, None, [PartitionBooks({":deal": "1"}, {})])
    for left in ({"red": "5"}, {"o:red": "refuse"}, {CAPACITY: "5"}, {"*": "5"}):
        assert not is_dealt({}, None, [PartitionBooks({":deal": "1"} | left, {})])


def test_partitions_of_two_deals_are_not_dealt() -> None:
    assert not is_dealt({}, None, [PartitionBooks({":deal": "1"}, {}), PartitionBooks({":deal": "2"}, {})])


@given(
    total=BYTES,
    partitions=st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=6),
    later=st.lists(BYTES, min_size=6, max_size=6),
)
def test_after_a_deal_the_partitions_have_no_more_than_its_total(
    total: int, partitions: list[tuple[int, int]], later: list[int]
) -> None:
    """Lowering as bounds.lua does it, with holdings that changed since they were read."""
    policies = {RED: TenantPolicy(tenant="red", redis_limit_bytes=total)}
    deal = plan(policies, None, books(*((held, limit) for held, limit in partitions)))
    lowered = []
    for index, (_, limit) in enumerate(partitions):
        held_now = min(later[index], limit)
        target = deal.limits["red"][index]
        lowered.append({"red": min(limit, target if "red" in deal.owed else max(target, held_now))})
    raised = [now["red"] + more.get("red", 0) for now, more in zip(lowered, missing(deal, lowered), strict=True)]
    before = sum(limit for _, limit in partitions)
    assert sum(raised) <= max(total, min(before, sum(now["red"] for now in lowered)))
    if before <= total or "red" in deal.owed:
        assert sum(raised) == total


@given(
    partitions=st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=6),
    asked=st.dictionaries(st.integers(0, 5), st.integers(1, 500), min_size=1),
    may_force=st.booleans(),
)
def test_a_move_takes_what_is_unused_and_no_more_than_is_wanted(
    partitions: list[tuple[int, int]], asked: dict[int, int], may_force: bool
) -> None:
    state = books(*partitions)
    short = {p: n for p, n in asked.items() if p < len(state)}
    move = plan_move("red", short, state, may_force=may_force)
    after = [books_.unused("red") - move.take.get(p, 0) + move.give.get(p, 0) for p, books_ in enumerate(state)]
    assert all(n >= 0 for n in after)
    assert sum(move.take.values()) == sum(move.give.values())
    assert all(n <= state[p].unused("red") for p, n in move.take.items())
    assert all(n <= state[p].held["red"] for p, n in move.force.items())
    assert not move.force.keys() & move.give.keys()
    if not move.force:
        return
    assert may_force
    assert sum(move.force.values()) == sum(max(0, n - after[p]) for p, n in short.items() if p in move.give)


def test_two_halves_of_a_block_become_one() -> None:
    move = plan_move("red", {0: 10, 1: 10}, books((0, 5), (0, 5)), may_force=False)
    assert (move.take, move.give) == ({1: 5}, {0: 5, 1: 0})


@given(got=BYTES, give=st.dictionaries(st.integers(0, 5), st.integers(1, 500), min_size=1))
def test_what_was_got_is_given_to_the_last_byte(got: int, give: dict[int, int]) -> None:
    assert sum(shared_out(got, give).values()) == got
