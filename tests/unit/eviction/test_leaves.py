"""LeafHeap and Queue: leaves in order, whatever was looked at, ranked anew or removed in between."""

from __future__ import annotations

from itertools import islice

from tiered.blocks.record import NO_PARENT
from tiered.eviction.leaves import HEAP_SPARE, LeafHeap, Tree
from tiered.eviction.search import Queue
from tiered.types import BlockId


def ids(*numbers: int) -> list[BlockId]:
    return [BlockId(number) for number in numbers]


def heap_of(*numbers: int) -> tuple[Tree, LeafHeap]:
    """Unrelated blocks, each with its number for its rank."""
    tree = Tree()
    heap = LeafHeap(tree)
    for number in numbers:
        tree.add(BlockId(number), NO_PARENT)
        heap.rank(BlockId(number), (number, number))
    return tree, heap


def test_a_heap_gives_leaves_by_rank_again_and_again() -> None:
    _, heap = heap_of(3, 1, 2)
    assert list(islice(heap.leaves(), 2)) == [1, 2]
    assert list(heap.leaves()) == list(heap.leaves()) == [1, 2, 3]


def test_a_block_waits_outside_while_it_has_children() -> None:
    tree, heap = heap_of(1, 2, 3)
    tree.add(BlockId(9), BlockId(1))
    assert list(heap.leaves()) == [2, 3]
    assert tree.remove(BlockId(9)) == 1
    heap.offer(BlockId(1))
    assert list(heap.leaves()) == [1, 2, 3]


def test_a_block_with_two_children_is_a_leaf_when_both_have_left() -> None:
    tree, _ = heap_of(1)
    tree.add(BlockId(8), BlockId(1))
    tree.add(BlockId(9), BlockId(1))
    assert tree.remove(BlockId(8)) is None
    assert tree.remove(BlockId(9)) == 1


def test_a_block_that_comes_again_with_a_lower_rank_is_found_there() -> None:
    _, heap = heap_of(5, 6)
    heap.remove(BlockId(6))
    heap.rank(BlockId(6), (1, 100))
    assert list(heap.leaves()) == [6, 5]


def test_a_heap_sheds_what_was_removed_without_being_looked_at() -> None:
    """Also what a look had taken out when it did: each id comes once."""
    _, heap = heap_of(0, 1, 2)
    assert list(islice(heap.leaves(), 2)) == [0, 1]
    for number in range(3, 3 + 4 * HEAP_SPARE):
        heap.rank(BlockId(number), (number, number))
        heap.remove(BlockId(number))
    assert list(heap.leaves()) == [0, 1, 2]


def test_a_queue_gives_what_was_passed_before_what_is_ahead() -> None:
    queue = Queue(Tree())
    for block_id in ids(1, 2, 3, 4):
        queue.append(block_id)
    queue.pass_by(BlockId(1))
    queue.pass_by(BlockId(2))
    assert list(queue.passed.leaves()) == [1, 2]
    assert (list(queue.ahead), queue.oldest(), len(queue)) == ([3, 4], 1, 4)
    queue.renew(BlockId(1))
    assert (list(queue.ahead), queue.oldest()) == ([3, 4, 1], 2)
