"""What callers say is used as far as it has been right."""

from __future__ import annotations

import random

import pytest

from tests.unit.eviction.hazard.builders import NEVER_LRU, QUICK, Engine, keys
from tests.unit.eviction.hazard.test_requests import owner
from tiered.eviction.hazard.classes import CLOSED, SHARED
from tiered.types import NO_HINTS, Continues, Hints

SAYS = {True: Hints(continues=Continues.YES), False: Hints(continues=Continues.NO)}


def chat(engine: Engine, *, n_sessions: int, seed: int, told: dict[bool, Hints] | None) -> int:
    """Half of the conversations have a second turn, after a minute; all have the same shape. Returns the hits."""
    rnd = random.Random(seed)
    n_hits, due = 0, list[tuple[float, list[int]]]()
    for session in range(n_sessions):
        engine.wait(5.0)
        while due and due[0][0] <= engine.now:
            n_hits += engine.serve(due.pop(0)[1], told[False] if told else NO_HINTS, service_s=0.1)
        path = [100 * session + i for i in range(1, 7)]
        goes_on = rnd.random() < 0.5
        engine.serve(path, told[goes_on] if told else NO_HINTS, service_s=0.1)
        if goes_on:
            due.append((engine.now + 60.0, [*path[:5], path[5] + 50, path[5] + 51]))
    return n_hits


def test_a_caller_who_is_right_gains_and_one_who_says_nothing_new_does_not() -> None:
    silent, right, always = (
        chat(Engine(48), n_sessions=400, seed=1, told=told)
        for told in (None, SAYS, {True: SAYS[True], False: SAYS[True]})
    )
    assert right > 1.3 * silent
    assert always == pytest.approx(silent, rel=0.05)


def test_a_caller_who_is_always_wrong_is_understood() -> None:
    silent = chat(Engine(48), n_sessions=400, seed=1, told=None)
    wrong = chat(Engine(48), n_sessions=400, seed=1, told={True: SAYS[False], False: SAYS[True]})
    assert wrong > 1.1 * silent


def test_a_closed_conversation_leaves_before_the_others() -> None:
    engine = Engine(20)
    for number in (1, 2, 3):
        engine.serve([10 * number, 10 * number + 1], Hints(session=f"s{number}"))
    engine.policy.on_close("s2", now=engine.now)
    assert [engine.evict() for _ in range(2)] == [21, 20]


def test_closing_keeps_what_other_conversations_share() -> None:
    engine = Engine(20)
    for number in (1, 2):
        engine.serve([7, 8, *range(10 * number, 10 * number + 4)], Hints(session=f"s{number}"))
    engine.policy.on_close("s2", now=engine.now)
    classes = {block_class for *_, block_class in owner(engine.policy, 20).runs}
    assert classes == {CLOSED, SHARED}


def test_a_name_that_nobody_knows_or_nobody_has_any_more_closes_nothing() -> None:
    engine = Engine(20)
    engine.serve([1, 2], Hints(session="a"))
    before = engine.order()
    engine.policy.on_close("b", now=engine.now)
    engine.policy.on_close("", now=engine.now)
    assert engine.order() == before
    engine.wait(1.0)
    engine.serve([1, 2, 3])  # takes all of it over
    engine.policy.on_close("a", now=engine.now)
    assert not owner(engine.policy, 1).is_closed


def test_a_request_closed_while_it_runs_is_closed_at_its_end() -> None:
    engine = Engine(20)
    request = engine.look_up([1, 2, 3], Hints(session="a"))
    engine.policy.on_close("a", now=engine.now)
    engine.policy.on_end(request, now=engine.now, output_tokens=3)
    assert {block_class for *_, block_class in owner(engine.policy, 1).runs} == {CLOSED}


def test_a_conversation_is_closed_once_its_time_to_live_has_passed() -> None:
    engine = Engine(20)
    engine.serve([1, 2, 3], Hints(ttl_s=50.0), service_s=10.0)
    for seconds, closed in ((49.0, False), (2.0, True)):
        engine.wait(seconds)
        engine.look_up([9])
        assert owner(engine.policy, 1).is_closed is closed
    assert owner(engine.policy, 1).age_bin == 7  # 32 to 64 s: it goes on ageing


@pytest.mark.parametrize("ttl_s", [0.0, 1e300])
def test_any_time_to_live_is_taken(ttl_s: float) -> None:
    engine = Engine(20)
    engine.serve([1, 2, 3], Hints(ttl_s=ttl_s))
    engine.wait(1e5)
    engine.look_up([9])
    assert owner(engine.policy, 1).is_closed is (ttl_s == 0.0)


def test_closed_conversations_that_return_all_the_same_cost_a_caller_its_credit() -> None:
    """The index of what is said to be over rises with each that was not."""

    def index_of_closed(returns: bool) -> float:
        engine = Engine(200, NEVER_LRU)
        for session in range(60):
            path = [10 * session + i for i in range(1, 6)]
            engine.serve(path, Hints(session="s", ttl_s=0.0))
            engine.wait(3.0)
            engine.look_up([path[0]] if not returns else [*path, path[-1] + 1])
            engine.wait(3.0)
        return engine.policy._book.learning.rates.indices[CLOSED][3]

    assert index_of_closed(returns=True) > 3 * index_of_closed(returns=False)


def test_sessions_are_forgotten_with_their_requests() -> None:
    engine = Engine(8, QUICK)
    for number in range(300):
        engine.serve([10 * number + i for i in range(1, 5)], Hints(session=f"s{number}"))
        engine.wait(1.0)
    assert len(engine.policy._book.sessions) <= engine.policy._book.memory.n_segments <= 30


def test_a_hint_comes_late_and_still_counts() -> None:
    engine = Engine(20)
    request = engine.look_up([1, 2])
    engine.policy.on_save(50, keys([1, 2, 3]), now=engine.now, hints=SAYS[False])
    assert owner(engine.policy, 3).continues is Continues.NO
    assert owner(engine.policy, 3).names == [request, 50]
