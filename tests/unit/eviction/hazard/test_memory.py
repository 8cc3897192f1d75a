"""What is remembered is bounded, and what is forgotten is what nobody asked for longest."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.naive_hazard import NaiveHazard
from tests.support.policy_driver import N_IDS, REQUEST_STEPS, Driver, Steps
from tests.unit.eviction.builders import insert, key_of, remove
from tests.unit.eviction.hazard.builders import QUICK, Engine
from tiered.eviction.hazard.parameters import DEFAULTS, Parameters
from tiered.eviction.hazard.policy import HazardPolicy
from tiered.types import Hints


@settings(max_examples=400)
@given(steps=REQUEST_STEPS, n_blocks=st.sampled_from([1, 3, N_IDS]))
def test_with_small_numbers_too_it_proposes_in_the_order_of_its_naive_model(steps: Steps, n_blocks: int) -> None:
    """So that rates are refreshed, ghosts forgotten, ends lost, and LRU takes over within a short history."""
    driver = Driver(HazardPolicy(n_blocks, QUICK), NaiveHazard(n_blocks, QUICK), n_blocks).run(steps)
    assert list(driver.policy.victims()) == driver.model.order()
    assert isinstance(driver.policy, HazardPolicy)
    assert isinstance(driver.model, NaiveHazard)
    assert driver.policy.n_ghosts == len(driver.model.owner) - len(driver.model.keys)


@pytest.mark.parametrize(
    ("parameters", "limit"),
    [
        (replace(QUICK, ghosts_each=4, ghosts_min=0, ghosts_max=10_000), 4 * 24),
        (replace(QUICK, ghosts_each=4, ghosts_min=300, ghosts_max=10_000), 300),
        (replace(QUICK, ghosts_each=4, ghosts_min=300, ghosts_max=50), 50),
    ],
)
def test_ghosts_are_bounded(parameters: Parameters, limit: int) -> None:
    engine, rnd = Engine(24, parameters), random.Random(1)
    most = 0
    for _ in range(2_000):
        root = 1_000 * rnd.randrange(60)
        engine.serve([root + i for i in range(1, rnd.randint(2, 20))], service_s=0.5)
        engine.wait(rnd.expovariate(1.0))
        most = max(most, engine.policy.n_ghosts)
    assert limit - 20 <= most <= limit


@pytest.mark.parametrize(("n_policies", "limit"), [(1, 300), (3, 100), (1_000, 40)])
def test_policies_of_one_pool_share_its_memory(n_policies: int, limit: int) -> None:
    parameters = replace(QUICK, ghosts_each=4, ghosts_min=300, ghosts_max=10_000, ghosts_least=40)
    engine, rnd = Engine(24, parameters), random.Random(1)
    for _ in range(500):  # it may have remembered more before others came
        engine.serve([1_000 * rnd.randrange(60) + i for i in range(1, 20)], service_s=0.5)
    engine.policy.share_memory(n_policies)
    most = 0
    for turn in range(1_000):
        engine.serve([1_000 * rnd.randrange(60) + i for i in range(1, rnd.randint(2, 20))], service_s=0.5)
        engine.wait(rnd.expovariate(1.0))
        most = max(most, engine.policy.n_ghosts) if turn else 0
    assert limit - 20 <= most <= limit + 20  # what left for the newest request is looked at with the next


def test_the_bound_on_ghosts_is_that_of_the_documents() -> None:
    assert (DEFAULTS.ghosts_each, DEFAULTS.ghosts_min, DEFAULTS.ghosts_max) == (4, 20_000, 262_144)


def test_what_is_remembered_does_not_grow_with_what_was_seen() -> None:
    """Labels, sessions and prompts without end, requests that never end, and time that passes or stands still."""
    engine, rnd, sizes = Engine(24, QUICK), random.Random(1), []
    for number in range(12_000):
        path = [100 * number + i for i in range(1, 5)]
        hints = Hints(labels=(f"l{number % 64}",), session=f"s{number}", ttl_s=float(number % 7))
        if number % 3:
            engine.serve(path, hints)
        else:
            engine.look_up(path, hints)
        if number % 1_000 > 500:
            engine.wait(rnd.expovariate(0.1))
        if number in (3_999, 11_999):
            sizes.append(len(pickle.dumps(engine.policy)))
    assert sizes[1] <= 1.25 * sizes[0]


def test_the_oldest_requests_are_forgotten_first() -> None:
    engine = Engine(4, replace(QUICK, ghosts_min=8, ghosts_each=0))
    for first in (10, 20, 30, 40, 50):
        engine.serve([first, first + 1, first + 2, first + 3])
        engine.wait(1.0)
    known = engine.policy._book.memory.blocks
    assert [key_of(first) in known for first in (10, 20, 30, 40, 50)] == [False, False, True, True, True]


def test_the_request_under_way_is_never_forgotten() -> None:
    engine = Engine(4, QUICK)
    path = list(range(1, 200))
    engine.look_up(path)
    assert engine.policy.n_ghosts == len(path)
    engine.look_up([1_000])
    assert engine.policy.n_ghosts <= QUICK.ghosts_max + 1


def test_blocks_above_a_gap_are_kept_when_what_lies_below_is_forgotten() -> None:
    """Removals in any order leave pieces of a path; forgetting its ghosts loses none of them."""
    engine = Engine(12, replace(QUICK, ghosts_min=3, ghosts_each=0))
    engine.serve([1, 2, 3, 4, 5, 6, 7])
    for content in (7, 4, 1):
        remove(engine.policy, engine._id_of.pop(content))
    engine.look_up([20, 21, 22])
    engine.look_up([30, 31, 32])
    known = engine.policy._book.memory.blocks
    assert [content for content in range(1, 8) if key_of(content) in known] == [2, 3, 5, 6]
    assert sorted(engine.order()) == [2, 3, 5, 6]
    insert(engine.policy, 11, content=4)
    assert len(engine.policy) == 5


def test_capacity_is_the_pool_until_something_left_and_then_what_is_held() -> None:
    engine = Engine(10)
    book = engine.policy._book
    engine.serve([1, 2, 3])
    assert book.capacity() == 10
    engine.serve([4, 5, 6, 7, 8, 9, 10, 11])
    assert book.capacity() == 10
    for _ in range(6):
        engine.evict()
    assert book.capacity() == 4
    for _ in range(4):
        engine.evict()
    assert book.capacity() == 1
