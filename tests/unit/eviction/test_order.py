"""fifo, lfu, sieve and cost, which remember nothing of what left: who goes before whom."""

from __future__ import annotations

import pytest

from tests.unit.eviction.builders import evict, hit, insert, order, remove, touch
from tiered.eviction.cost import CostPolicy
from tiered.eviction.fifo import FifoPolicy
from tiered.eviction.lfu import LfuPolicy
from tiered.eviction.registry import POLICIES
from tiered.eviction.sieve import SievePolicy


def test_fifo_does_not_care_for_hits() -> None:
    policy = FifoPolicy()
    insert(policy, 1, 2, 3)
    hit(policy, 1, 1)
    touch(policy, 1)
    assert order(policy) == [1, 2, 3]


def test_lfu_takes_the_least_used_and_of_equals_the_one_unused_for_longest() -> None:
    policy = LfuPolicy()
    insert(policy, 1, 2, 3, 4)
    hit(policy, 1, 1, 3, 2)
    assert order(policy) == [4, 3, 2, 1]


def test_lfu_counts_a_use_that_goes_on_once() -> None:
    policy = LfuPolicy()
    insert(policy, 1, 2, 3)
    touch(policy, 1, 1, 1)
    hit(policy, 3)
    assert order(policy) == [2, 1, 3]


def test_sieve_leaves_what_was_hit_in_its_place() -> None:
    """Unlike CLOCK, which would make 1 the youngest: here what came after it is younger still."""
    policy = SievePolicy()
    insert(policy, 1, 2, 3)
    hit(policy, 1)
    assert evict(policy) == 2
    insert(policy, 4)
    assert [evict(policy), evict(policy), evict(policy)] == [3, 4, 1]


def test_sieve_passes_by_what_is_refused_and_finds_it_in_the_next_round() -> None:
    policy = SievePolicy()
    insert(policy, 1, 2, 3, 4)
    assert evict(policy, refused=[1]) == 2
    assert order(policy) == [3, 4, 1]


@pytest.mark.parametrize("name", ["sieve", "s3fifo"])
def test_a_use_that_goes_on_is_no_hit(name: str) -> None:
    policy = POLICIES[name](4)
    insert(policy, 1, 2, 3)
    touch(policy, 1, 1, 1)
    assert evict(policy) == 1


def test_what_is_removed_without_having_been_proposed_moves_no_hand() -> None:
    policy = SievePolicy()
    insert(policy, 1, 2, 3)
    hit(policy, 1)
    remove(policy, 3)
    assert order(policy) == [2, 1]
    insert(policy, 4)
    assert order(policy) == [2, 4, 1]


# Cost.


def chain(policy: CostPolicy, first: int, n_blocks: int) -> None:
    """A prefix, told of from its end; each block costs more than the one before it."""
    for depth in reversed(range(n_blocks)):
        insert(policy, first + depth, parent=first + depth - 1 if depth else -1, cost=1.0 + depth)


def test_cost_takes_leaves_only_though_what_they_hang_on_is_cheaper() -> None:
    policy = CostPolicy()
    chain(policy, 10, 3)
    assert [evict(policy), evict(policy), evict(policy)] == [12, 11, 10]


def test_cost_keeps_the_longer_of_two_prefixes() -> None:
    policy = CostPolicy()
    chain(policy, 10, 8)
    chain(policy, 20, 2)
    assert [evict(policy), evict(policy)] == [21, 20]


def test_cost_keeps_what_is_used_more() -> None:
    policy = CostPolicy()
    insert(policy, 1, 2, cost=5.0)
    insert(policy, 3, cost=6.0)
    hit(policy, 1)
    assert order(policy) == [2, 3, 1]


def test_cost_lets_an_idle_block_age_however_dear_it_was() -> None:
    policy = CostPolicy()
    insert(policy, 0, cost=10.0)
    hit(policy, 0, 0)
    evicted = []
    for newcomer in range(1, 40):
        insert(policy, newcomer, cost=1.0)
        evicted.append(evict(policy))
    assert (
        evicted.index(0) == 29
    )  # worth three uses of 10; each newcomer ages the cache by 1, and of equals 0 is older


def test_cost_does_not_age_by_a_removal_that_is_no_eviction() -> None:
    policy = CostPolicy()
    insert(policy, 1, cost=100.0)
    remove(policy, 1)
    insert(policy, 2, cost=5.0)
    insert(policy, 3, cost=6.0)
    hit(policy, 2)
    assert order(policy) == [3, 2]
    assert next(policy.victims()) == 3


def test_a_prefix_becomes_a_victim_as_soon_as_nothing_hangs_on_it() -> None:
    policy = CostPolicy()
    chain(policy, 10, 2)
    insert(policy, 12, parent=10, cost=2.0)
    insert(policy, 5, cost=50.0)
    remove(policy, 11)
    assert order(policy)[-1] == 10
    remove(policy, 12)
    assert order(policy) == [10, 5]
