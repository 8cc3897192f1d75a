"""How totals are lent: what is decided upon which books, one case at a time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.leader.demand import Demand, note
from coordinator.leader.limits import Standing, lend
from coordinator.leader.portion import portion
from coordinator.leader.shares import Borrower, Bound, Deal, deal
from tiered.cluster.shares import Books, Held, Lent, Record, Report
from tiered.types import Epoch, NodeId, TenantId

RED = TenantId("red")
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
POLICIES = 3


def borrowers(*nodes: NodeId, capacity: int = 1_000) -> list[Borrower]:
    return [Borrower(node, Epoch(1), capacity) for node in nodes]


def report(held: int, *, used: int = 0, revision: int = 0, epoch: int = 1, policies: int = POLICIES) -> Report:
    return Report(epoch, revision, policies, {RED: Held(held, used)})


def limits(made: Deal) -> dict[NodeId, int | None]:
    return {node: record.tenants[RED].limit_bytes for node, record in made.changed.items()}


def books(
    lent: Mapping[NodeId, Lent] | None = None, reports: Mapping[NodeId, Report] | None = None, *, revision: int = 7
) -> Books:
    records = {node: Record(1, revision, {RED: share}) for node, share in (lent or {}).items()}
    return Books(revision=revision, settled=True, lent=records, reports=reports or {})


def test_new_nodes_are_lent_equal_parts_of_the_whole() -> None:
    made = deal(
        [Bound(RED, 100)], borrowers(A, B), books(reports={A: report(0), B: report(0)}), {}, policies=POLICIES
    )
    assert limits(made) == {A: 50, B: 50}
    assert made.revision == 8


def test_nobody_is_raised_before_whoever_is_lowered_has_said_so() -> None:
    wants = {(A, 1, RED): Demand(0, 100)}
    full = books(
        {A: Lent(50, 0, 50), B: Lent(50, 0, 50)}, {A: report(50, used=50, revision=7), B: report(50, revision=7)}
    )
    first = deal([Bound(RED, 100)], borrowers(A, B), full, wants, policies=POLICIES)
    [(node, lower)] = limits(first).items()
    assert node == B
    assert lower is not None
    assert lower < 50
    assert first.changed[B].tenants[RED].ceiling_bytes == 50
    unconfirmed = Books(8, settled=True, lent={**full.lent, B: first.changed[B]}, reports=full.reports)
    assert deal([Bound(RED, 100)], borrowers(A, B), unconfirmed, wants, policies=POLICIES).changed == {}
    said = {A: report(50, used=50, revision=7), B: report(lower, revision=8)}
    confirmed = Books(8, settled=True, lent=unconfirmed.lent, reports=said)
    second = deal([Bound(RED, 100)], borrowers(A, B), confirmed, wants, policies=POLICIES)
    assert limits(second)[A] == 100 - lower


def test_bytes_above_a_lowered_limit_are_not_lent_to_others_until_they_have_left() -> None:
    still = books(
        {A: Lent(50, 0, 50), B: Lent(10, 0, 50)},
        {A: report(50, used=50, revision=7), B: report(45, used=45, revision=7)},
    )
    wants = {(A, 1, RED): Demand(0, 100)}
    assert limits(deal([Bound(RED, 100)], borrowers(A, B), still, wants, policies=POLICIES))[A] == 55


def test_a_share_that_was_read_and_not_taken_yet_still_counts() -> None:
    """B was lent 80 in revision 7 and 30 in 8; it has confirmed 6, so 80 may still be on its way into force."""
    late = Books(
        8,
        settled=True,
        lent={A: Record(1, 6, {RED: Lent(20, 0, 20)}), B: Record(1, 8, {RED: Lent(30, 0, 80)})},
        reports={A: report(20, used=20, revision=6), B: report(50, revision=6)},
    )
    assert (
        deal([Bound(RED, 100)], borrowers(A, B), late, {(A, 1, RED): Demand(0, 99)}, policies=POLICIES).changed == {}
    )


@pytest.mark.parametrize("silence", [None, report(0, epoch=2), report(0, policies=POLICIES - 1)])
def test_a_member_that_has_not_said_what_it_holds_keeps_all_from_being_raised(silence: Report | None) -> None:
    reports = {A: report(0)} | ({} if silence is None else {B: silence})
    made = deal([Bound(RED, 100)], borrowers(A, B), books(reports=reports), {}, policies=POLICIES)
    assert made.silent == (B,)
    assert limits(made) == {A: 0}


def test_books_that_are_not_settled_lend_what_is_held_and_no_more() -> None:
    made = deal([Bound(RED, 100)], borrowers(A), books(reports={A: report(30)}), {}, policies=POLICIES, settled=False)
    assert limits(made) == {A: 30}


def test_the_share_of_a_life_that_ended_is_lent_to_others_and_goes_from_the_books() -> None:
    gone = books(
        {A: Lent(50, 0, 50), B: Lent(50, 0, 50)}, {A: report(50, used=40, revision=7), B: report(50, revision=7)}
    )
    made = deal([Bound(RED, 100)], borrowers(A), gone, {}, policies=POLICIES)
    assert limits(made) == {A: 100}
    assert made.gone == {B}


def test_a_life_that_comes_back_with_what_was_lent_on_is_lowered_with_the_others_until_the_sum_fits() -> None:
    returned = books(
        {A: Lent(100, 0, 100)}, {A: report(100, used=100, revision=7), B: report(60, used=60, revision=5)}
    )
    made = deal([Bound(RED, 100)], borrowers(A, B), returned, {}, policies=POLICIES)
    lowered = limits(made)
    assert sum(limit or 0 for limit in lowered.values()) <= 100
    assert all(limit is not None and limit > 0 for limit in lowered.values())


def test_shares_stay_still_while_nobody_wants_more() -> None:
    uneven = books(
        {A: Lent(70, 0, 70), B: Lent(30, 0, 30)},
        {A: report(70, used=1, revision=7), B: report(30, used=29, revision=7)},
    )
    assert deal([Bound(RED, 100)], borrowers(A, B), uneven, {}, policies=POLICIES).changed == {}


def test_a_lowered_total_is_below_at_once_and_a_raised_one_is_lent_at_once() -> None:
    even = books(
        {A: Lent(50, 0, 50), B: Lent(50, 0, 50)},
        {A: report(50, used=50, revision=7), B: report(50, used=50, revision=7)},
    )
    assert limits(deal([Bound(RED, 40)], borrowers(A, B), even, {}, policies=POLICIES)) == {A: 20, B: 20}
    assert limits(deal([Bound(RED, 200)], borrowers(A, B), even, {}, policies=POLICIES)) == {A: 100, B: 100}


def test_an_unnamed_tenant_has_a_share_only_where_it_is_seen() -> None:
    seen = books(reports={A: report(0), B: Report(1, 0, POLICIES)})
    wants = {(A, 1, RED): Demand(0, 5)}
    made = deal([Bound(RED, 100, everywhere=False)], borrowers(A, B), seen, wants, policies=POLICIES)
    assert limits(made) == {A: 100}


def test_a_policy_that_cannot_be_read_leaves_what_was_lent_under_it() -> None:
    lent = books({A: Lent(50, 5, 50)}, {A: report(50, revision=7)})
    made = deal([], borrowers(A), lent, {}, policies=POLICIES, untouched={RED})
    assert made.changed == {}
    assert made.gone == frozenset()
    dropped = deal([], borrowers(A), lent, {}, policies=POLICIES)
    assert dropped.gone == {A}


def test_nobody_is_lent_more_than_its_pool_or_than_its_limit_per_node() -> None:
    reports = {A: report(0), B: report(0), C: report(0)}
    nodes = [Borrower(A, Epoch(1), 10), Borrower(B, Epoch(1), 1_000), Borrower(C, Epoch(1), 1_000)]
    made = deal([Bound(RED, 300)], nodes, books(reports=reports), {}, policies=POLICIES)
    assert limits(made) == {A: 10, B: 145, C: 145}
    capped = deal([Bound(RED, 300, node_limit_bytes=20)], nodes, books(reports=reports), {}, policies=POLICIES)
    assert limits(capped) == {A: 10, B: 20, C: 20}


def reserved(made: Deal, tenant: TenantId = RED) -> dict[NodeId, int]:
    return {node: record.tenants[tenant].reserved_bytes for node, record in made.changed.items()}


def test_a_reservation_is_placed_whole_and_never_beyond_what_a_node_can_keep() -> None:
    nodes = [Borrower(A, Epoch(1), 100, kept_bytes=80), Borrower(B, Epoch(1), 100)]
    made = deal([Bound(RED, None, 110)], nodes, books(reports={A: report(0), B: report(0)}), {}, policies=POLICIES)
    assert made.reserved == {RED: 110}
    assert reserved(made)[A] <= 20
    assert reserved(made)[B] <= 100


def test_reservations_that_no_longer_fit_are_scaled_in_proportion_and_restored_with_the_node() -> None:
    blue = TenantId("blue")
    bounds = [Bound(RED, None, 120), Bound(blue, None, 40)]
    both = deal(
        bounds, borrowers(A, B, capacity=100), books(reports={A: report(0), B: report(0)}), {}, policies=POLICIES
    )
    assert both.reserved == {RED: 120, blue: 40}
    kept = Books(8, settled=True, lent=dict(both.changed), reports={A: report(0, revision=8)})
    alone = deal(bounds, borrowers(A, capacity=100), kept, {}, policies=POLICIES)
    assert alone.reserved == {RED: 75, blue: 25}
    back = Books(9, settled=True, lent=dict(alone.changed), reports={A: report(0, revision=9), B: report(0)})
    assert deal(bounds, borrowers(A, B, capacity=100), back, {}, policies=POLICIES).reserved == {RED: 120, blue: 40}


def test_reservations_lie_where_the_limit_lies() -> None:
    made = deal(
        [Bound(RED, 100, 60)], borrowers(A, B), books(reports={A: report(0), B: report(0)}), {}, policies=POLICIES
    )
    assert reserved(made) == {A: 30, B: 30}


def test_growth_counts_and_fades_and_a_life_new_to_the_leader_wants_nothing_yet() -> None:
    def said(wanted: int) -> dict[NodeId, Report]:
        return {A: Report(1, 0, 0, {RED: Held(0, 0, wanted)})}

    demands = note({}, said(500))
    assert demands[A, 1, RED].recent_bytes == 0
    demands = note(demands, said(600))
    assert demands[A, 1, RED].recent_bytes == 100
    for _ in range(20):
        demands = note(demands, said(600))
    assert demands[A, 1, RED].recent_bytes == 0
    assert note(demands, {}) == {}


amounts = st.integers(0, 1 << 50)


@given(st.lists(st.tuples(st.integers(0, 1 << 50), amounts), max_size=9), amounts)
def test_portions_are_within_caps_and_sum_to_all_that_caps_allow(rows: list[tuple[int, int]], total: int) -> None:
    weights, caps = [w for w, _ in rows], [c for _, c in rows]
    parts = portion(total, weights, caps)
    assert all(0 <= part <= cap for part, cap in zip(parts, caps, strict=True))
    assert sum(parts) == min(total, sum(cap for weight, cap in rows if weight))


@given(
    st.lists(st.tuples(amounts, amounts, amounts, amounts, st.booleans()), min_size=1, max_size=8),
    amounts,
    st.booleans(),
    st.booleans(),
)
def test_what_may_be_in_force_never_sums_to_more_than_the_total_or_than_before(
    rows: list[tuple[int, int, int, int, bool]], total: int, everywhere: bool, may_raise: bool
) -> None:
    standings = [
        Standing(share, share + more, used, wanted, is_known=known) for share, more, used, wanted, known in rows
    ]
    shares = lend(total, standings, everywhere=everywhere, may_raise=may_raise)
    before = sum(standing.ceiling_bytes for standing in standings)
    after = sum(max(s.ceiling_bytes, share) for s, share in zip(standings, shares, strict=True))
    assert after <= max(total, before)
    assert all(share >= 0 for share in shares)
    if sum(standing.share_bytes for standing in standings) > total:
        assert sum(shares) <= total
    if not may_raise:
        assert all(share <= standing.share_bytes for share, standing in zip(shares, standings, strict=True))


def test_nobody_is_raised_while_more_is_held_than_there_is_not_even_up_to_what_it_holds() -> None:
    """A total was lowered: b still holds much more than its share. Were that raised, and b had let go by then, b and
    a, who has not taken its lower share, would have more in force than there is."""
    a = Standing(share_bytes=97, ceiling_bytes=97, used_bytes=96, cap_bytes=1_000)
    b = Standing(share_bytes=102, ceiling_bytes=224, used_bytes=224, cap_bytes=1_000)
    assert max(lend(240, [a, b], everywhere=True, may_raise=True)) <= 102
    b_has_let_go = Standing(share_bytes=102, ceiling_bytes=102, used_bytes=96, cap_bytes=1_000)
    assert lend(240, [a, b_has_let_go], everywhere=True, may_raise=True)[1] > 102
