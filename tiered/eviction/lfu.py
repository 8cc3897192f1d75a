"""Least frequently used; among equals, least recently used.

K. Shah, A. Mitra, D. Matani: "An O(1) algorithm for implementing the LFU cache eviction scheme", technical report,
2010.

O(1) a hit, O(log n) an insert, an eviction, and each refusal before it. The paper keeps a list for each number of
uses and gets by in O(1); but only leaves may leave, and a block that becomes a leaf would have to find its place by
last use in the middle of such a list. A heap of the leaves by uses and last use gives the paper's order exactly, and
a hit still costs O(1), since it only makes a block's place in the heap a lower bound.

Nothing ages: what was popular once stays for as long as it is cached.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered.eviction.leaves import LeafHeap, Tree
from tiered.types import BlockHash, BlockId


class LfuPolicy:
    def __init__(self) -> None:
        self._tree = Tree()
        self._heap = LeafHeap(self._tree)
        self._uses: dict[BlockId, int] = {}
        self._n_uses = 0

    def __len__(self) -> int:
        return len(self._uses)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del key, recompute_cost  # uses alone decide
        self._tree.add(block_id, parent)
        self._uses[block_id] = 0
        self.on_hit(block_id)

    def on_hit(self, block_id: BlockId) -> None:
        self._uses[block_id] += 1
        self.on_touch(block_id)

    def on_touch(self, block_id: BlockId) -> None:
        self._n_uses += 1
        self._heap.rank(block_id, (self._uses[block_id], self._n_uses))

    def on_remove(self, block_id: BlockId) -> None:
        del self._uses[block_id]
        self._heap.remove(block_id)
        parent = self._tree.remove(block_id)
        if parent is not None:
            self._heap.offer(parent)

    def victims(self) -> Iterator[BlockId]:
        yield from self._heap.leaves()
        yield from (block_id for block_id in self._heap if block_id in self._tree.inner)
