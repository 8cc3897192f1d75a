"""One suite over every eviction policy: it knows exactly the blocks it was told of, and looking changes nothing."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.naive_policies import NAIVE
from tests.support.policy_driver import N_IDS, REQUEST_STEPS, STEPS, Driver, Steps, key_of
from tiered.blocks.record import NO_PARENT
from tiered.eviction.policy import EvictionPolicy, PolicyFactory, RequestAware
from tiered.eviction.registry import POLICIES, policy_factory
from tiered.types import BlockId

every_policy = pytest.mark.parametrize("name", list(POLICIES))
every_learner = pytest.mark.parametrize(
    "name", [name for name, factory in POLICIES.items() if isinstance(factory(1), RequestAware)]
)


def insert(policy: EvictionPolicy, name: int, *, key: int | None = None, parent: int = NO_PARENT) -> None:
    policy.on_insert(
        BlockId(name), key=key_of(name if key is None else key), parent=BlockId(parent), recompute_cost=16.0
    )


def driver_of(name: str, n_blocks: int = N_IDS, *, looks: bool = True) -> Driver:
    return Driver(POLICIES[name](n_blocks), NAIVE[name](n_blocks), n_blocks, looks=looks)


@every_policy
@settings(max_examples=500)
@given(steps=STEPS, n_blocks=st.sampled_from([1, 3, N_IDS, N_IDS]))
def test_a_policy_proposes_in_the_order_of_its_naive_model(name: str, steps: Steps, n_blocks: int) -> None:
    driver = driver_of(name, n_blocks).run(steps)
    assert list(driver.policy.victims()) == driver.model.order()


@every_policy
@given(steps=STEPS)
def test_a_policy_proposes_every_block_it_knows_once_and_no_other(name: str, steps: Steps) -> None:
    driver = driver_of(name).run(steps)
    assert sorted(driver.policy.victims()) == sorted(driver.known)
    assert len(driver.policy) == len(driver.known)


@every_policy
@given(steps=STEPS)
def test_looking_for_a_victim_changes_nothing(name: str, steps: Steps) -> None:
    looking, blind = driver_of(name).run(steps), driver_of(name, looks=False).run(steps)
    assert list(looking.policy.victims()) == list(looking.policy.victims()) == list(blind.policy.victims())


@every_policy
@given(steps=STEPS)
def test_the_same_events_lead_to_the_same_order(name: str, steps: Steps) -> None:
    one, other = driver_of(name).run(steps), driver_of(name).run(steps)
    assert list(one.policy.victims()) == list(other.policy.victims())


@every_policy
@given(steps=STEPS)
def test_victims_can_leave_until_none_is_left(name: str, steps: Steps) -> None:
    policy = driver_of(name).run(steps).policy
    for left in range(len(policy), 0, -1):
        assert len(policy) == left
        policy.on_remove(next(policy.victims()))
    assert list(policy.victims()) == []


@every_policy
@given(steps=STEPS, order=st.permutations(range(N_IDS)))
def test_blocks_may_leave_in_any_order_and_come_back(name: str, steps: Steps, order: list[int]) -> None:
    """A cleared tenant, or an eviction that the policy would not have proposed."""
    driver = driver_of(name).run(steps)
    for number in order:
        driver.run([("remove", number, 0)])
        assert list(driver.policy.victims()) == driver.model.order()
    assert len(driver.policy) == 0
    driver.run([("insert", number, number + 7) for number in order])
    assert list(driver.policy.victims()) == driver.model.order()


@every_policy
@given(steps=STEPS, number=st.integers(0, N_IDS - 1))
def test_a_block_that_comes_back_is_proposed_once(name: str, steps: Steps, number: int) -> None:
    driver = driver_of(name).run(steps)
    for key in (100, 101, 100):
        driver.run([("remove", number, 0)])
        insert(driver.policy, number, key=key)
        driver.model.insert(BlockId(number), key_of(key), NO_PARENT, 16.0)
    assert list(driver.policy.victims()).count(BlockId(number)) == 1


@every_learner
@settings(max_examples=500)
@given(steps=REQUEST_STEPS, n_blocks=st.sampled_from([1, 3, N_IDS, N_IDS]))
def test_a_learner_proposes_in_the_order_of_its_naive_model(name: str, steps: Steps, n_blocks: int) -> None:
    driver = driver_of(name, n_blocks).run(steps)
    assert list(driver.policy.victims()) == driver.model.order()


@every_learner
@given(steps=REQUEST_STEPS)
def test_a_learner_proposes_every_block_it_knows_once_and_no_other(name: str, steps: Steps) -> None:
    driver = driver_of(name).run(steps)
    assert sorted(driver.policy.victims()) == sorted(driver.known)
    assert len(driver.policy) == len(driver.known)


@every_learner
@given(steps=REQUEST_STEPS)
def test_looking_teaches_a_learner_nothing(name: str, steps: Steps) -> None:
    looking, blind = driver_of(name).run(steps), driver_of(name, looks=False).run(steps)
    assert list(looking.policy.victims()) == list(blind.policy.victims())


@every_learner
@given(steps=REQUEST_STEPS, order=st.permutations(range(N_IDS)))
def test_a_learners_blocks_may_leave_in_any_order_and_come_back(name: str, steps: Steps, order: list[int]) -> None:
    driver = driver_of(name).run(steps)
    driver.run([("remove", number, 0) for number in order])
    assert len(driver.policy) == 0
    driver.run([("insert", number, number + 7) for number in order])
    assert list(driver.policy.victims()) == driver.model.order()


@every_policy
def test_two_policies_share_nothing(name: str) -> None:
    one, other = POLICIES[name](4), POLICIES[name](4)
    insert(one, 1)
    assert len(other) == 0


# What it costs.


@every_policy
def test_what_a_policy_remembers_is_bounded_by_the_pool(name: str) -> None:
    """Blocks come and go by the thousand: as victims, and without having been proposed."""
    n_blocks = 24
    policy, sizes = POLICIES[name](n_blocks), []
    for key in range(24_000):
        block_id = key % n_blocks
        if key >= n_blocks:
            if key % 3:
                block_id = next(policy.victims())
            policy.on_remove(BlockId(block_id))
        insert(policy, block_id, key=key)
        for _ in range(key % 5):
            policy.on_hit(BlockId(block_id))
        if key in (2_999, 23_999):
            sizes.append(len(pickle.dumps(policy)))
        assert getattr(policy, "n_ghosts", 0) <= 2 * n_blocks - len(policy)
    assert sizes[1] <= 1.2 * sizes[0]


@contextmanager
def counted_lines() -> Iterator[list[int]]:
    """How many lines of policies run meanwhile."""
    count = [0]

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if "/eviction/" not in frame.f_code.co_filename:
            return None
        count[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def work(policy: EvictionPolicy, keys: range) -> None:
    """Hits, evictions and inserts on a policy that holds ids from 0 on; the first 40 are in use."""
    for key in keys:
        policy.on_hit(BlockId(key % 40))
        policy.on_touch(BlockId(key % 24))
        victim = next(b for b in policy.victims() if b >= 40)
        policy.on_remove(victim)
        insert(policy, victim, key=key)


def lines_of_work(name: str, n_blocks: int) -> int:
    """Lines for 400 steps; what the filling of the policy left to the next search is done before."""
    policy = POLICIES[name](n_blocks)
    for number in reversed(range(n_blocks)):  # deepest first, as the caller tells of them
        insert(policy, number, parent=number - 1 if number % 8 else NO_PARENT)
    for number in range(0, n_blocks, 3):
        policy.on_hit(BlockId(number))
    work(policy, range(n_blocks, n_blocks + 100))
    with counted_lines() as count:
        work(policy, range(n_blocks + 100, n_blocks + 500))
    return count[0]


@every_policy
def test_the_cost_of_a_step_does_not_grow_with_the_number_of_blocks(name: str) -> None:
    assert lines_of_work(name, 51_200) <= 1.2 * lines_of_work(name, 6_400)


def proposals_for(policy: EvictionPolicy, n_evictions: int, may_leave: Callable[[BlockId], bool]) -> int:
    """How many proposals it takes to find that many victims, each followed by a new block."""
    n_proposals = 0
    for step in range(n_evictions):
        for block_id in policy.victims():
            n_proposals += 1
            if may_leave(block_id):
                break
        else:
            raise AssertionError("a block that may leave was not proposed")
        policy.on_remove(block_id)
        insert(policy, block_id, key=1_000_000 + step)
    return n_proposals


def insert_prompt(policy: EvictionPolicy, names: range, *, n_at_once: int) -> None:
    """A chain, saved in pieces: of each the deepest block is told of first."""
    for start in range(names.start, names.stop, n_at_once):
        for number in reversed(names[start - names.start : start - names.start + n_at_once]):
            insert(policy, number, parent=number - 1 if number > names.start else NO_PARENT)


@every_policy
def test_a_long_prompt_that_is_being_saved_is_not_in_the_way_of_a_search(name: str) -> None:
    """Its blocks are the newest, of no known use yet, and pinned; blocks of proven use may leave."""
    policy, half = POLICIES[name](4_000), 2_000
    for number in range(half):
        insert(policy, number)
        for _ in range(3):
            policy.on_hit(BlockId(number))
    insert_prompt(policy, range(half, 2 * half), n_at_once=64)
    assert proposals_for(policy, 500, lambda block_id: block_id < half) <= 500 * 3


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "lru"])
def test_a_long_prompt_that_was_there_first_is_not_in_the_way_of_a_search(name: str) -> None:
    """By recency alone its use would have made it the youngest; the others may still think it the oldest."""
    policy, half = POLICIES[name](4_000), 2_000
    insert_prompt(policy, range(half), n_at_once=64)
    for number in range(half, 2 * half):
        insert(policy, number)
    assert proposals_for(policy, 500, lambda block_id: block_id >= half) <= 500 * 3


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "lru"])
def test_prompts_that_came_bit_by_bit_leave_from_their_ends(name: str) -> None:
    """Each bit is younger than what it hangs on; the caller refuses what has children."""
    policy, n_prompts, n_blocks = POLICIES[name](2_000), 20, 100
    n_children = dict.fromkeys(range(n_prompts * n_blocks), 0)
    for depth in range(n_blocks):
        for prompt in range(n_prompts):
            number = prompt * n_blocks + depth
            insert(policy, number, parent=number - 1 if depth else NO_PARENT)
            if depth:
                n_children[number - 1] += 1
    n_proposals = 0
    for _ in range(1_500):
        for block_id in policy.victims():
            n_proposals += 1
            if not n_children[block_id]:
                break
        policy.on_remove(block_id)
        if block_id % n_blocks:
            n_children[block_id - 1] -= 1
    assert n_proposals == 1_500


def test_every_policy_has_a_model_and_every_model_a_policy() -> None:
    assert set(NAIVE) == set(POLICIES)


@every_policy
def test_a_policy_is_made_for_a_pool_of_one_block(name: str) -> None:
    factory: PolicyFactory = policy_factory(name)
    policy = factory(1)
    for key in range(5):
        insert(policy, 0, key=key)
        policy.on_hit(BlockId(0))
        assert list(policy.victims()) == [0]
        policy.on_remove(BlockId(0))
    assert len(policy) == 0
