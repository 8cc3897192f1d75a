"""Requests as they come: turns of a conversation, saves of what was looked up, ends that never come."""

from __future__ import annotations

import pytest

from tests.unit.eviction.builders import hit, insert, key_of, order, remove
from tests.unit.eviction.hazard.builders import NEVER_LRU, QUICK, Engine, keys
from tiered.eviction.hazard.classes import ABANDONED, FIRST_IDLE, LAST, RUNNING, UNNAMED
from tiered.eviction.hazard.policy import HazardPolicy
from tiered.eviction.hazard.segment import Segment
from tiered.types import NO_HINTS, BlockId, Hints


def owner(policy: HazardPolicy, content: int) -> Segment:
    return policy._book.memory.blocks[key_of(content)].owner


def on_save(engine: Engine, request: int, path: list[int]) -> None:
    engine.policy.on_save(request, keys(path), now=engine.now, hints=NO_HINTS)


def on_end(engine: Engine, request: int) -> None:
    engine.policy.on_end(request, now=engine.now, output_tokens=None)


def test_a_prompt_that_goes_on_from_another_is_its_next_turn() -> None:
    engine = Engine(100)
    engine.serve([1, 2, 3], service_s=2.0)
    engine.wait(30.0)
    engine.serve([1, 2, 4, 5], service_s=2.0)
    engine.wait(10.0)
    engine.serve([1, 2, 4, 6, 7])
    turns = owner(engine.policy, 7)
    assert (turns.turn, turns.gap_s) == (3, 10.0)
    assert turns.mean_gap_s == pytest.approx(0.7 * 30.0 + 0.3 * 10.0)


def test_what_the_next_turn_does_not_use_is_abandoned() -> None:
    engine = Engine(100)
    engine.serve([1, 2, 3, 4, 5])
    engine.wait(1.0)
    engine.serve([1, 2, 3, 6])
    left = owner(engine.policy, 4)
    assert (left.start, left.length) == (3, 5)
    assert [block_class for first, stop, block_class in left.runs if stop > left.start] == [ABANDONED, LAST]


def test_two_conversations_with_one_beginning_are_not_one() -> None:
    engine = Engine(100)
    for first in (10, 20, 30):
        engine.serve([1, 2, *range(first, first + 8)])
        engine.wait(1.0)
    assert [owner(engine.policy, content).turn for content in (10, 20, 30)] == [1, 1, 1]
    assert engine.policy._book.memory.blocks[key_of(2)].n_starts == 3


def test_a_prompt_asked_again_takes_all_of_the_first_ones_blocks() -> None:
    engine = Engine(100)
    engine.serve([1, 2, 3])
    first = owner(engine.policy, 3)
    engine.wait(1.0)
    assert engine.serve([1, 2, 3]) == 3
    assert not first.is_alive
    assert owner(engine.policy, 1) is owner(engine.policy, 3) is not first


def test_blocks_of_the_request_under_way_leave_last() -> None:
    engine = Engine(8)
    engine.serve([1, 2, 3])
    engine.serve([11, 12])
    engine.look_up([21, 22])
    engine.store([21, 22])
    assert engine.order()[2] == 22
    assert [engine.evict() for _ in range(7)][-2:] == [22, 21]


def test_a_prompt_leaves_from_its_end() -> None:
    engine = Engine(8)
    engine.serve([1, 2, 3, 4])
    engine.wait(100.0)
    engine.look_up([9])
    assert [engine.evict() for _ in range(4)] == [4, 3, 2, 1]


def test_a_save_is_the_rest_of_the_request_that_was_looked_up() -> None:
    engine = Engine(20)
    request = engine.look_up([1, 2, 3])
    segment = owner(engine.policy, 3)
    on_end(engine, request)
    engine.wait(5.0)
    on_save(engine, 100, [1, 2, 3, 4, 5])
    assert owner(engine.policy, 5) is segment
    assert (segment.length, segment.turn, segment.is_running) == (5, 1, True)
    engine.store([1, 2, 3, 4, 5])
    engine.wait(2.0)
    on_end(engine, 100)
    assert segment.ended_at == engine.now
    assert [run[2] for run in segment.runs][-1] == LAST


def test_a_save_of_less_than_was_looked_up_is_that_request() -> None:
    engine = Engine(20)
    engine.look_up([1, 2, 3])
    on_save(engine, 100, [1, 2])
    assert owner(engine.policy, 2) is owner(engine.policy, 3)
    assert owner(engine.policy, 3).length == 3


def test_who_only_saves_tells_of_a_request_each_time() -> None:
    engine = Engine(20)
    for request, path in enumerate(([1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6])):
        on_save(engine, request, path)
        engine.store(path)
        on_end(engine, request)
        engine.wait(10.0)
    assert owner(engine.policy, 6).turn == 3
    assert owner(engine.policy, 1) is owner(engine.policy, 6)


def test_a_save_that_goes_another_way_is_a_request_of_its_own() -> None:
    engine = Engine(20)
    engine.look_up([1, 2, 3])
    on_save(engine, 100, [1, 2, 4])
    assert owner(engine.policy, 4) is not owner(engine.policy, 3)


def test_a_request_whose_end_is_lost_does_not_run_for_ever() -> None:
    engine = Engine(20, QUICK)
    engine.look_up([1, 2])
    segment = owner(engine.policy, 1)
    engine.wait(QUICK.running_s_max + 20.0)
    late = engine.look_up([9])
    assert not segment.is_running
    assert segment.ended_at == QUICK.running_s_max
    on_end(engine, 1)  # late, and about nobody
    assert segment.ended_at == QUICK.running_s_max
    assert engine.policy._book.ages.n_running == 1
    on_end(engine, late)
    assert engine.policy._book.ages.n_running == 0


def test_the_names_of_requests_are_forgotten_with_them() -> None:
    engine = Engine(20, QUICK)
    for _ in range(1_000):
        engine.look_up([1, 2, 3])  # none of them ever ends
    assert engine.policy._book.ages.n_running == 1


def test_an_end_of_an_unknown_request_changes_nothing() -> None:
    engine = Engine(20)
    engine.serve([1, 2, 3])
    before = engine.order()
    on_end(engine, 77)
    assert engine.order() == before


def test_an_empty_path_is_no_request() -> None:
    policy = HazardPolicy(4)
    policy.on_request(1, [], now=0.0, hints=NO_HINTS)
    policy.on_save(2, [], now=0.0, hints=NO_HINTS)
    policy.on_end(1, now=1.0, output_tokens=None)
    assert len(policy) == policy.n_ghosts == 0


@pytest.mark.parametrize("path", [[1, 1], [1, 2, 1], [2, 1], [5, 3, 4], [1, 3], [3]])
def test_a_path_that_contradicts_what_is_known_is_survived(path: list[int]) -> None:
    """Hashes cannot do this; a made-up trace can."""
    engine = Engine(20)
    engine.serve([1, 2, 3, 4])
    engine.wait(1.0)
    engine.look_up(path)
    on_save(engine, 100, path)
    engine.look_up([1, 2, 3, 4, 5])
    assert sorted(engine.order()) == [1, 2, 3, 4]
    assert sorted(engine.evict() for _ in range(4)) == [1, 2, 3, 4]


def test_time_that_runs_backwards_stands_still() -> None:
    engine = Engine(20)
    engine.wait(100.0)
    engine.serve([1, 2])
    engine.wait(-50.0)
    engine.serve([1, 2, 3])
    assert owner(engine.policy, 3).gap_s == 0.0
    assert owner(engine.policy, 3).began_at == 100.0


# Blocks of which no request was told.


def test_a_block_that_no_request_named_is_a_segment_of_its_own() -> None:
    policy = HazardPolicy(4, NEVER_LRU)
    insert(policy, 1, 2)
    assert owner(policy, 1) is not owner(policy, 2)
    assert owner(policy, 1).runs == [(0, 1, UNNAMED)]
    assert order(policy) == [1, 2]


def test_a_use_that_no_request_named_begins_the_waiting_anew() -> None:
    policy = HazardPolicy(4, NEVER_LRU)
    insert(policy, 1, 2, 3)
    hit(policy, 1)
    assert order(policy) == [2, 3, 1]


def test_another_tenants_use_of_a_request_counts_once_and_keeps_it_young() -> None:
    engine = Engine(20)
    engine.serve([1, 2, 3, 4])
    segment = owner(engine.policy, 4)
    engine.wait(40.0)
    engine.look_up([9])
    rates = engine.policy._book.learning.rates
    for content in (2, 1):
        engine.policy.on_hit(BlockId(engine._id_of[content]))
    assert segment.ended_at == 40.0
    assert sum(map(sum, rates.returned)) == 2.0


def test_what_no_request_named_is_forgotten_when_it_leaves() -> None:
    policy = HazardPolicy(4)
    insert(policy, 1)
    remove(policy, 1)
    assert policy.n_ghosts == 0
    assert policy._book.memory.n_segments == 0


def test_a_request_takes_over_what_was_there_without_one() -> None:
    engine = Engine(20)
    engine.store([1, 2, 3])
    engine.wait(1.0)
    engine.look_up([1, 2, 3, 4])
    segment = owner(engine.policy, 1)
    assert [owner(engine.policy, content) for content in (2, 3, 4)] == [segment] * 3
    assert (segment.cached_end, segment.age_bin) == (3, RUNNING)
    assert engine.policy._book.memory.n_segments == 1


def test_labels_and_output_stay_known_when_a_save_says_less() -> None:
    engine = Engine(20)
    engine.look_up([1, 2], Hints(labels=("model=a",), session="s", output_tokens=7))
    on_save(engine, 100, [1, 2])
    segment = owner(engine.policy, 2)
    assert (segment.labels, segment.session, segment.output_tokens) == (("model=a",), "s", 7)


def test_what_was_here_before_the_first_request_has_been_idle_since_then_whatever_the_clock_says() -> None:
    policy = HazardPolicy(8, NEVER_LRU)
    insert(policy, 1)
    policy.on_request(1, keys([2]), now=1e6, hints=NO_HINTS)
    assert owner(policy, 1).age_bin == FIRST_IDLE
    policy.on_request(2, keys([3]), now=1e6 + 100.0, hints=NO_HINTS)
    assert owner(policy, 1).age_bin > FIRST_IDLE
