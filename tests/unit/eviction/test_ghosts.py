"""s3fifo, arc and lirs, which remember what left: by its content, since slots are used again."""

from __future__ import annotations

import pytest

from tests.unit.eviction.builders import evict, hit, insert, order, remove, replay, touch
from tiered.eviction.arc import ArcPolicy
from tiered.eviction.lirs import LirsPolicy
from tiered.eviction.lru import LruPolicy
from tiered.eviction.registry import POLICIES
from tiered.eviction.s3fifo import S3FifoPolicy

with_ghosts = pytest.mark.parametrize("name", ["s3fifo", "arc", "lirs"])


def a_scan_between_uses(n_rounds: int, n_hot: int, n_scanned: int) -> list[int]:
    """A few contents wanted three times in every round, and many that are wanted once in all."""
    contents: list[int] = []
    for round_ in range(n_rounds):
        contents += [content for content in range(n_hot) for _ in range(3)]
        contents += range(1000 + round_ * n_scanned, 1000 + (round_ + 1) * n_scanned)
    return contents


@with_ghosts
def test_a_long_scan_does_not_wash_out_what_is_used_again(name: str) -> None:
    contents = a_scan_between_uses(n_rounds=30, n_hot=10, n_scanned=40)
    n_repeats = 30 * 10 * 2  # these hit under any policy
    assert replay(LruPolicy(), contents, 20) == n_repeats
    assert replay(POLICIES[name](20), contents, 20) >= n_repeats + 20 * 10


@with_ghosts
def test_a_slot_that_is_used_again_is_not_taken_for_what_lay_in_it(name: str) -> None:
    def where_it_stands(content: int) -> list[int]:
        policy = POLICIES[name](20)
        insert(policy, *range(10))
        hit(policy, *range(5, 10))
        remove(policy, 3)
        insert(policy, 3, content=content)
        insert(policy, 11)
        return order(policy)

    assert where_it_stands(content=3) != where_it_stands(content=77)


@with_ghosts
def test_the_history_is_bounded_by_the_pool_for_a_tenant_with_a_small_part_of_it(name: str) -> None:
    policy = POLICIES[name](30)
    insert(policy, *range(5))
    n_ghosts = []
    for content in range(100, 400):
        hit(policy, *range(5))
        insert(policy, evict(policy), content=content)
        n_ghosts.append(policy.n_ghosts)  # type: ignore[attr-defined]
    assert max(n_ghosts) <= 60 - 5


# S3-FIFO.


def test_s3fifo_lets_what_was_hit_once_on_probation_go() -> None:
    policy = S3FifoPolicy(10)
    insert(policy, 1, 2, 3)
    hit(policy, 1)
    assert evict(policy) == 1


def test_s3fifo_promotes_at_two_hits_and_forgets_them() -> None:
    """In the main queue it has to be hit again to get another round."""
    policy = S3FifoPolicy(10)
    insert(policy, 1, 2)
    hit(policy, 1, 1)
    assert evict(policy) == 2
    assert evict(policy) == 1


def test_s3fifo_gives_one_round_in_main_for_each_hit_up_to_three() -> None:
    policy = S3FifoPolicy(10)
    insert(policy, *range(5))
    hit(policy, *range(5), *range(5))
    insert(policy, 9)
    assert evict(policy) == 9  # and promotes the others
    hit(policy, *[0] * 9, *[1] * 3, 2, 2)
    assert order(policy) == [3, 4, 2, 0, 1]


def test_s3fifo_takes_what_comes_back_straight_to_main() -> None:
    policy = S3FifoPolicy(10)
    insert(policy, 1, 2)
    assert evict(policy) == 1
    insert(policy, 5, content=1)
    assert order(policy) == [2, 5]
    insert(policy, 3)
    assert order(policy) == [2, 3, 5]


def test_s3fifo_takes_from_main_while_the_small_queue_is_less_than_a_tenth() -> None:
    policy = S3FifoPolicy(100)
    insert(policy, *range(20))
    hit(policy, *range(20), *range(20))
    insert(policy, 50, 51)
    assert evict(policy) == 50
    assert evict(policy) == 0  # 51 is one in twenty-one


# ARC.


def test_arc_proposes_what_was_used_once_before_what_was_used_again() -> None:
    policy = ArcPolicy(4)
    insert(policy, 1, 2, 3)
    hit(policy, 1)
    assert order(policy) == [2, 3, 1]


def test_arc_counts_a_use_that_goes_on_as_recent_and_not_as_again() -> None:
    policy = ArcPolicy(4)
    insert(policy, 1, 2, 3)
    hit(policy, 3)
    touch(policy, 1)
    assert order(policy) == [2, 1, 3]


def test_arc_gives_the_recent_side_more_when_its_ghosts_return_and_less_when_the_others_do() -> None:
    policy = ArcPolicy(4)
    insert(policy, 1, 2, 3, 4)
    hit(policy, 3, 4)
    assert evict(policy) == 1
    insert(policy, 5, content=1)  # the recent side, 2, is now allowed to hold one
    assert order(policy) == [3, 4, 5, 2]
    assert evict(policy) == 3
    insert(policy, 6, content=3)
    assert order(policy) == [2, 4, 5, 6]


def test_arc_moves_its_target_faster_the_rarer_the_ghosts_that_return() -> None:
    policy = ArcPolicy(6)
    insert(policy, *range(6))
    hit(policy, 1, 2, 3, 4, 5)
    remove(policy, 0)
    remove(policy, 1, 2, 3)  # three ghosts of the frequent side, one of the other
    insert(policy, 10, 11, 12)
    insert(policy, 13, content=0)  # the target is 3 at once
    assert order(policy)[0] == 4


def test_arc_keeps_its_target_within_what_the_tenant_holds() -> None:
    """In a pool of a thousand, two blocks could otherwise learn a target of hundreds, and unlearn it as slowly."""
    policy = ArcPolicy(1000)
    insert(policy, 0, 1)
    for content in range(100, 130):
        remove(policy, 0)
        insert(policy, 0, content=content)
        remove(policy, 0)
        insert(policy, 0, content=content)
    for content in (100, 101, 102):  # ghosts of the frequent side return
        remove(policy, 0)
        insert(policy, 0, content=content)
    assert order(policy)[0] == 1


# LIRS.


def test_lirs_proposes_cold_blocks_before_hot_ones() -> None:
    policy = LirsPolicy(4)
    insert(policy, 1, 2, 3, 4)  # 1 is cold: one of so few is
    assert order(policy) == [1, 2, 3, 4]
    hit(policy, 2)
    assert order(policy) == [1, 3, 4, 2]


def test_lirs_makes_hot_what_returns_before_the_oldest_hot_one_does() -> None:
    policy = LirsPolicy(4)
    insert(policy, 1, 2, 3, 4)
    assert evict(policy) == 1
    insert(policy, 5)
    hit(policy, 5)
    assert order(policy) == [2, 3, 4, 5]  # 2 was the oldest hot one and is cold now
    hit(policy, 2)  # it is not in the stack any more
    assert order(policy) == [2, 3, 4, 5]


def test_lirs_knows_a_ghost_that_returns_in_time() -> None:
    policy = LirsPolicy(4)
    insert(policy, 1, 2, 3, 4)
    evict(policy)
    insert(policy, 5)
    assert evict(policy) == 5
    insert(policy, 6, content=5)
    assert order(policy) == [2, 3, 4, 6]


def test_lirs_forgets_a_ghost_older_than_the_oldest_hot_block() -> None:
    policy = LirsPolicy(4)
    insert(policy, 1, 2, 3, 4)
    evict(policy)
    insert(policy, 5)
    evict(policy)
    hit(policy, 2, 3, 4)
    assert policy.n_ghosts == 0
    insert(policy, 6, content=5)
    assert order(policy) == [6, 2, 3, 4]


def test_lirs_takes_its_hundredth_of_what_a_tenant_is_left_with() -> None:
    """Squeezed from 200 blocks to 100, it keeps one cold place, not an idle two, and newcomers are judged there."""
    policy = LirsPolicy(1000)
    insert(policy, *range(200))
    for _ in range(100):
        evict(policy)
    insert(policy, 500)
    insert(policy, 501)
    hit(policy, 501)
    assert evict(policy) != 501
    assert evict(policy) != 501


def test_lirs_forgets_its_first_ghost_when_the_pool_has_no_more_blocks_than_ghosts() -> None:
    """Two hot blocks idle while strangers come and go: none of those falls below the oldest hot block."""
    policy = LirsPolicy(3)
    insert(policy, 0, 1, 2)
    for content in range(100, 105):
        insert(policy, evict(policy), content=content)
    assert policy.n_ghosts == 3  # 101, 102, 103: 0 was cold from the first and had left the stack, 100 is forgotten
    insert(policy, evict(policy), content=100)
    assert order(policy)[1:] == [1, 2]
    insert(policy, evict(policy), content=103)
    assert order(policy)[0] == 1  # that one is remembered: it is hot at the cost of 1
    hit(policy, 2, 1)
    assert policy.n_ghosts == 0
