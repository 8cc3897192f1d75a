"""Who leads, and for how long a replica may believe that it does: the decision alone, and against a real server."""

from __future__ import annotations

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from coordinator.leader.leading import Leading
from coordinator.leader.lease import LeaseState, heard, resigned, unheard
from tests.support.redis_server import eventually
from tiered.clock import ManualClock
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.cluster.leadership import Leader, Leadership
from tiered.cluster.shares import LendAnswer, Shares
from tiered.errors import TierUnavailable

LEASE_S = 5.0
US, OTHER = LeaseState("us", LEASE_S), "other"


def led_by(replica: str, *, token: int = 7, left_s: float = LEASE_S) -> Leader:
    return Leader(token, replica, "http://127.0.0.1:1", left_s)


@given(asked_at=st.floats(0, 1e6), took_s=st.floats(0, 60))
def test_a_leader_has_stopped_before_its_lease_can_have_ended_at_the_server(asked_at: float, took_s: float) -> None:
    """The server began to count no sooner than we asked, however long its answer took."""
    state = heard(US, led_by("us"), asked_at=asked_at, now=asked_at + took_s)
    assert not state.leads(asked_at + LEASE_S)
    assert state.leads(asked_at + LEASE_S / 2)


def test_a_leader_that_hears_nothing_goes_on_until_its_time_is_over_and_asks_often() -> None:
    state = heard(US, led_by("us"), asked_at=0.0, now=0.1)
    assert state.ask_at == pytest.approx(LEASE_S / 3)
    state = unheard(state, now=3.0)
    assert state.leads(3.9)
    assert not state.leads(4.1)
    assert state.ask_at - 3.0 <= 0.5


def test_whoever_waits_asks_at_the_moment_when_the_lease_would_end() -> None:
    state = heard(US, led_by(OTHER, left_s=0.4), asked_at=0.0, now=0.1)
    assert not state.leads(0.1)
    assert 0.5 < state.ask_at < 0.6
    assert heard(US, led_by(OTHER, left_s=9.0), asked_at=0.0, now=0.0).ask_at <= 0.5, "it may resign"


def test_a_leader_that_hears_of_another_stops_at_once_and_so_does_one_that_resigns() -> None:
    ours = heard(US, led_by("us"), asked_at=0.0, now=0.0)
    assert not heard(ours, led_by(OTHER, token=8), asked_at=0.1, now=0.1).leads(0.1)
    assert not resigned(ours).leads(0.0)


def leading(client: redis.Redis, keys: Keys, clock: ManualClock, *, lease_s: float = LEASE_S) -> Leading:
    return Leading(Leadership(client, keys), clock, lease_s, url="http://127.0.0.1:1")


def test_one_of_two_leads_and_the_other_at_once_when_it_resigns(redis_client: redis.Redis, redis_keys: Keys) -> None:
    clock = ManualClock()
    first, second = (leading(redis_client, redis_keys, clock) for _ in range(2))
    first.ask()
    second.ask()
    assert (first.leads(), second.leads()) == (True, False)
    seen = second.standing().leader
    assert seen is not None
    assert (seen.replica, seen.token) == (first.replica, first.token())
    first.resign()
    assert not first.leads()
    clock.advance(LEASE_S / 3)
    second.ask()
    assert second.leads()
    assert second.token() > seen.token
    assert first.token() == 0


def test_a_leader_that_is_gone_is_followed_when_its_lease_has_lapsed(
    redis_client: redis.Redis, redis_keys: Keys
) -> None:
    clock = ManualClock()
    gone, next_one = (leading(redis_client, redis_keys, clock, lease_s=0.2) for _ in range(2))
    gone.ask()
    next_one.ask()

    def takes_over() -> bool:
        clock.advance(1.0)
        next_one.ask()
        return next_one.leads()

    assert gone.leads()
    eventually(takes_over)
    assert not gone.leads()


def test_an_answer_that_was_lost_does_not_cost_the_lease(redis_client: redis.Redis, redis_keys: Keys) -> None:
    """The server took us for the leader, and we did not hear it: asking again says so, under the same token."""
    clock, leadership = ManualClock(), Leadership(redis_client, redis_keys)
    ours = leading(redis_client, redis_keys, clock)
    unheard_answer = leadership.ask(ours.replica, ours.url, lease_s=LEASE_S)
    ours.ask()
    assert ours.token() == unheard_answer.token


def test_tokens_grow_over_a_server_that_forgot_everything(redis_client: redis.Redis, redis_keys: Keys) -> None:
    leadership = Leadership(redis_client, redis_keys)
    before = leadership.ask("a", "", lease_s=LEASE_S)
    command(redis_client, "DEL", redis_keys.leader(), redis_keys.leader_tokens())
    assert leadership.look() is None
    after = leadership.ask("a", "", lease_s=LEASE_S)
    assert after.token > before.token


def test_resigning_leaves_the_lease_of_another_alone(redis_client: redis.Redis, redis_keys: Keys) -> None:
    leadership = Leadership(redis_client, redis_keys)
    leadership.ask("a", "", lease_s=LEASE_S)
    leadership.resign("b")
    found = leadership.look()
    assert found is not None
    assert found.replica == "a"


def test_what_an_older_leader_writes_late_is_refused(redis_client: redis.Redis, redis_keys: Keys) -> None:
    leadership, shares = Leadership(redis_client, redis_keys), Shares(redis_client, redis_keys)
    old = leadership.ask("old", "", lease_s=LEASE_S)
    leadership.resign("old")
    new = leadership.ask("new", "", lease_s=LEASE_S)

    def lend(token: int, read: int) -> LendAnswer:
        return shares.lend(token=token, read=read, revision=read + 1, settled=True, lives=[], changed={})

    assert lend(old.token, 0) is LendAnswer.FENCED
    assert lend(new.token, 0) is LendAnswer.DONE
    assert lend(new.token, 0) is LendAnswer.CHANGED
    assert shares.books().token == new.token


class Deaf(Leadership):
    def ask(self, replica: str, url: str, *, lease_s: float) -> Leader:
        raise TierUnavailable("gone")


def test_a_leader_cut_off_from_the_server_stops_by_its_own_clock(redis_client: redis.Redis, redis_keys: Keys) -> None:
    clock = ManualClock()
    ours = leading(redis_client, redis_keys, clock)
    ours.ask()
    ours.leadership = Deaf(redis_client, redis_keys)
    for _ in range(39):
        clock.advance(0.1)
        ours.ask()
        assert ours.leads()
    clock.advance(0.2)
    ours.ask()
    assert not ours.leads()
    assert ours.token() == 0
