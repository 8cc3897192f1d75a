"""What was counted between two samples: never negative, always adding up, whatever was started again meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.top.builders import counts, node, sample, tenant
from tiered.cli.bodies import Pressure
from tiered.cli.top.flow import flow_between, pressure_since, tokens_since
from tiered.types import NodeTraffic, TokenCounts

COUNTS = st.builds(
    counts,
    hot=st.integers(0, 1 << 60),
    peer=st.integers(0, 1 << 60),
    redis=st.integers(0, 1 << 60),
    missed=st.integers(0, 1 << 60),
)
PRESSURES = st.builds(Pressure, *[st.integers(0, 1 << 60)] * 4)


@given(COUNTS, COUNTS)
def test_tokens_between_any_two_counts_are_not_negative_and_add_up(earlier: TokenCounts, later: TokenCounts) -> None:
    since = tokens_since(earlier, later)
    assert min(since.asked, since.hot, since.peer, since.redis, since.missed) >= 0
    assert since.asked == since.hot + since.peer + since.redis + since.missed


@given(COUNTS, COUNTS)
def test_what_came_to_a_count_is_what_was_counted_since(earlier: TokenCounts, more: TokenCounts) -> None:
    assert tokens_since(earlier, earlier.plus(more)) == more


@given(PRESSURES, PRESSURES)
def test_nothing_of_who_took_room_is_ever_negative(earlier: Pressure, later: Pressure) -> None:
    since = pressure_since(earlier, later)
    assert min(getattr(since, name) for name in since.__struct_fields__) >= 0


def test_rates_are_over_the_time_between_the_reads_not_between_the_answers() -> None:
    before = sample(10.0, tenants=[tenant("red", counts(hot=100, missed=100))])
    after = sample(14.0, tenants=[tenant("red", counts(hot=300, missed=100))])
    flow = flow_between(before, after)
    assert flow is not None
    assert flow.seconds == 4.0
    assert flow.per_s(flow.tokens.asked) == 50.0
    assert flow.of_tenant("red").tokens == counts(hot=200)
    assert flow.of_tenant("nobody").tokens == counts()


@pytest.mark.parametrize("at", [10.0, 9.0])
def test_a_replica_that_is_behind_gives_no_rates(at: float) -> None:
    assert flow_between(sample(10.0), sample(at)) is None


def test_a_worker_that_started_again_counts_from_zero_and_not_below() -> None:
    before = sample(0.0, nodes=[node("a", epoch=1, traffic=NodeTraffic(peer_sent_bytes=1_000))])
    again = sample(1.0, nodes=[node("a", epoch=2, traffic=NodeTraffic(peer_sent_bytes=30))])
    flow = flow_between(before, again)
    assert flow is not None
    assert flow.of_node("a").peer_sent_bytes == 30


def test_a_node_seen_for_the_first_time_does_not_show_its_whole_life_as_now() -> None:
    later = sample(1.0, nodes=[node("a", traffic=NodeTraffic(redis_read_bytes=1 << 40, breaker_open=1))])
    flow = flow_between(sample(0.0), later)
    assert flow is not None
    assert flow.of_node("a") == NodeTraffic(breaker_open=1)


def test_an_open_breaker_is_a_state_and_not_a_difference() -> None:
    opened = node("a", traffic=NodeTraffic(breaker_open=1))
    flow = flow_between(sample(0.0, nodes=[opened]), sample(1.0, nodes=[opened]))
    assert flow is not None
    assert flow.of_node("a").breaker_open == 1


@pytest.mark.parametrize(
    ("earlier", "later", "saved_s"),
    [
        (2.0, 5.5, 3.5),
        (5.5, 2.0, 0.0),  # a worker has ended, and took its part along
        (None, 5.5, None),  # the replica asked before was too old to say
        (5.5, None, None),
    ],
)
def test_the_prefill_saved_is_what_came_to_the_coordinator_s_sum(
    earlier: float | None, later: float | None, saved_s: float | None
) -> None:
    flow = flow_between(
        sample(0.0, stats={"saved_prefill_s": earlier}), sample(1.0, stats={"saved_prefill_s": later})
    )
    assert flow is not None
    assert flow.saved_s == saved_s
