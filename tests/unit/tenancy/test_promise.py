from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.redis_server import block_hash
from tiered.tenancy.promise import IDLE_FACTOR, SURPLUS_PARTS, LeavingAge, Promise
from tiered.types import BlockHash


def path(name: str, n_blocks: int) -> Sequence[BlockHash]:
    return [block_hash(f"{name}/{index}") for index in range(n_blocks)]


def test_a_tenant_that_has_nothing_to_spare_is_protected_in_full() -> None:
    promise = Promise(16)
    promise.asked(path("p", 8), n_hits=0)
    assert all(promise.protects(block, is_idle=False) for block in [*path("p", 8), block_hash("never asked for")])


def test_hits_beyond_those_of_the_private_cache_are_a_surplus() -> None:
    promise = Promise(8)
    promise.asked(path("p", 4), n_hits=0)
    promise.asked(path("p", 4), n_hits=4)
    assert promise.surplus == 0  # the private cache would have had them too
    promise.asked(path("q", 8), n_hits=0)
    promise.asked(path("p", 4), n_hits=4)
    assert promise.surplus == 4  # q would have pushed them out
    promise.asked(path("p", 4), n_hits=1)
    assert promise.surplus == 1


def test_a_surplus_lends_what_the_private_cache_would_not_have() -> None:
    promise = Promise(8)
    promise.asked(path("old", 8), n_hits=8)
    promise.asked(path("new", 8), n_hits=0)
    assert promise.surplus == 8
    assert not promise.protects(block_hash("old/0"), is_idle=False)


def test_what_is_owed_is_covered_by_the_surplus_before_more_is_lent() -> None:
    promise = Promise(8)
    promise.asked(path("p", 8), n_hits=4)  # a surplus of 4: one more than the margin of 1, and 3 to lose
    lent = []
    for block in path("p", 8):
        if promise.protects(block, is_idle=False):
            break
        assert promise.take(block)
        lent.append(block)
    assert len(lent) == 3
    promise.asked(path("p", 8), n_hits=0)  # and it asks for them: none is owed any more
    assert promise.surplus == 4 - 8


def test_what_is_idle_is_lent_except_by_a_tenant_that_lost_by_that_before() -> None:
    promise = Promise(8)
    promise.asked(path("p", 8), n_hits=0)
    assert not promise.protects(block_hash("p/7"), is_idle=True)
    promise.asked(path("p", 8), n_hits=0)  # it was taken, and its tenant asks for it
    assert promise.surplus == -8
    assert promise.protects(block_hash("p/7"), is_idle=True)
    promise.asked(path("q", 8), n_hits=8)
    assert not promise.protects(block_hash("q/7"), is_idle=True)


def test_the_private_cache_is_as_large_as_the_reservation_and_keeps_the_beginning_of_a_long_prompt() -> None:
    promise = Promise(4)
    promise.asked(path("p", 10), n_hits=0)
    assert [promise.keeps(block) for block in path("p", 10)] == [True] * 4 + [False] * 6
    promise.resize(2)
    assert [promise.keeps(block) for block in path("p", 4)] == [True, True, False, False]


def test_a_surplus_is_bounded() -> None:
    promise = Promise(2)
    for number in range(100):
        promise.asked(path(f"p{number}", 5), n_hits=5)
    assert promise.surplus == 2 * SURPLUS_PARTS


def test_nothing_is_too_idle_until_the_pool_was_turned_over_once() -> None:
    age = LeavingAge(3)
    for _ in range(2):
        age.saw(100)
        assert age.too_idle == float("inf")
    age.saw(100)
    assert age.too_idle == pytest.approx(100 * IDLE_FACTOR)
