"""The sampled order against a list that is searched from end to end; and what no honest engine would send."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.unit.curve.builders import name, whole_stack
from tiered.curve.stack import SMALLEST_STEP, SampledStack
from tiered.types import BlockHash


class NaiveStack:
    """Youngest first."""

    def __init__(self) -> None:
        self.order: list[BlockHash] = []

    def touch(self, blocks: Sequence[BlockHash]) -> list[int]:
        places = []
        for block in blocks:
            if block not in self.order:
                break
            places.append(max([*places[-1:], self.order.index(block) + 1]))
        for block in reversed(blocks):
            if block in self.order:
                self.order.remove(block)
            self.order.insert(0, block)
        return places


def places_of(runs: Sequence[tuple[int, int]]) -> list[int]:
    return [place + offset for place, n_run in runs for offset in range(n_run)]


def path(rng: random.Random, depth: int) -> list[BlockHash]:
    """From the root of a tree with few branches, so that paths share beginnings."""
    node, names = 1, []
    for _ in range(depth):
        node = node * 3 + rng.randrange(3)
        names.append(name(node))
    return names


@pytest.mark.parametrize("seed", range(20))
def test_places_are_those_of_an_lru_list_whatever_part_of_a_chain_is_asked_for(seed: int) -> None:
    rng = random.Random(seed)
    stack, naive = whole_stack(), NaiveStack()
    for _ in range(300):
        asked = path(rng, rng.randint(1, 7))
        if rng.random() < 0.3:
            asked = asked[rng.randrange(len(asked)) :]  # an end alone, which makes it younger than its beginning
        if rng.random() < 0.2:
            asked = asked[: rng.randint(1, len(asked))]
        assert places_of(stack.touch(asked)) == naive.touch(asked)
        assert len(stack) == len(naive.order)


def test_the_middle_of_a_chain_used_alone_is_not_taken_for_a_run_that_it_left() -> None:
    stack, naive = whole_stack(), NaiveStack()
    chain = [name(number) for number in range(3)]
    other = [name(9)]
    for asked in (other, chain, chain[1:2], chain, other):
        assert places_of(stack.touch(asked)) == naive.touch(asked)


@pytest.mark.parametrize("seed", range(5))
def test_hashes_named_twice_leave_a_sound_order(seed: int) -> None:
    rng = random.Random(seed)
    stack = whole_stack()
    for _ in range(200):
        stack.touch([name(rng.randrange(12)) for _ in range(rng.randint(1, 9))])
        assert len(stack) <= 12
    honest = [name(number) for number in range(12)]
    stack.touch(honest)
    assert places_of(stack.touch(honest)) == list(range(1, 13))


def test_a_sample_too_large_keeps_the_lowest_hashes_in_their_order() -> None:
    stack = whole_stack()
    names = [name(number) for number in range(1_000)]
    for each in names:
        stack.touch([each])
    stack.narrow(400)
    kept = sorted(names)[:300]
    assert len(stack) == 300
    assert stack.lowest(1_000) == kept
    assert stack.threshold == sorted(names)[300]
    assert stack.per == pytest.approx(1_000 / 300, rel=0.2)
    youngest_first = [each for each in reversed(names) if each in set(kept)]
    assert places_of(stack.touch([youngest_first[0]])) == [1]
    assert places_of(stack.touch([youngest_first[99]])) == [100]


@pytest.mark.parametrize("n_bytes", [0, 3, 32])
def test_hashes_of_no_bytes_few_or_zeros_alone_stay_within_bounds(n_bytes: int) -> None:
    stack = SampledStack()
    for number in range(6_000):
        zeros = b"\0" * 28 + number.to_bytes(4, "big")
        block = BlockHash(zeros if n_bytes == 32 else name(number)[:n_bytes])
        if block < stack.threshold:
            stack.touch([block])
            stack.narrow(300)
        assert len(stack) <= 300
    assert stack.per >= SMALLEST_STEP


def test_what_was_not_used_since_a_mark_is_forgotten_and_the_rest_keeps_its_place() -> None:
    stack = whole_stack()
    stack.touch([name(1), name(2)])
    mark = stack.stamp
    stack.touch([name(3)])
    stack.touch([name(1)])
    stack.forget(mark)
    assert stack.lowest(9) == sorted([name(3), name(1)])
    assert places_of(stack.touch([name(3)])) == [2]
    assert places_of(stack.touch([name(2)])) == []
