from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import IllegalTransition
from tiered.prefix.index import PrefixIndex
from tiered.types import BlockHash, BlockId


def hash_of(name: int) -> BlockHash:
    return BlockHash(name.to_bytes(32, "big"))


@given(here=st.sets(st.integers(0, 9)), asked=st.lists(st.integers(0, 9), max_size=12))
def test_a_match_is_the_longest_run_from_the_first_hash_without_a_gap(here: set[int], asked: list[int]) -> None:
    index = PrefixIndex()
    for name in here:
        index.add(hash_of(name), BlockId(100 + name))
    expected = []
    for name in asked:
        if name not in here:
            break
        expected.append(100 + name)
    assert index.match([hash_of(name) for name in asked]) == expected
    assert len(index) == len(here)
    assert dict(index.items()) == {hash_of(name): 100 + name for name in here}


def test_one_hash_is_one_block() -> None:
    index = PrefixIndex()
    index.add(hash_of(1), BlockId(1))
    with pytest.raises(IllegalTransition):
        index.add(hash_of(1), BlockId(2))
    assert index.find(hash_of(1)) == 1


def test_only_what_is_named_can_be_removed() -> None:
    index = PrefixIndex()
    with pytest.raises(IllegalTransition):
        index.remove(hash_of(1), BlockId(1))
    index.add(hash_of(1), BlockId(1))
    with pytest.raises(IllegalTransition):
        index.remove(hash_of(1), BlockId(2))


def test_what_is_removed_is_found_no_more() -> None:
    index = PrefixIndex()
    index.add(hash_of(0), BlockId(0))
    index.remove(hash_of(0), BlockId(0))
    assert index.find(hash_of(0)) is None
    assert list(index) == index.match([hash_of(0)]) == []
