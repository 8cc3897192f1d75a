"""Cost: what is dear to compute again and often used stays; what lies idle ages away.

L. Cherkasova: "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Laboratories
technical report HPL-98-69, 1998.

A block is worth its uses times its recompute cost, all blocks being of one size, on top of the age of the cache when
it was last used; the age is the worth of the last block that was evicted. Equals leave by last use. The cost grows
with depth, so of two prefixes the longer one stays, and its end leaves as soon as it is worth the least of all ends.

O(1) a hit; O(log n) an insert, an eviction, and each refusal before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered.eviction.leaves import LeafHeap, Tree
from tiered.types import BlockHash, BlockId


class _Block:
    __slots__ = ("cost", "uses", "worth")

    def __init__(self, cost: float) -> None:
        self.cost = cost
        self.uses = 0
        self.worth = 0.0


class CostPolicy:
    def __init__(self) -> None:
        self._tree = Tree()
        self._heap = LeafHeap(self._tree)
        self._blocks: dict[BlockId, _Block] = {}
        self._stopped_at: BlockId | None = None
        """Where the newest look stopped, if nothing was told since."""
        self._age = 0.0
        self._n_uses = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del key  # what left is not remembered
        self._tree.add(block_id, parent)
        self._blocks[block_id] = _Block(recompute_cost)
        self.on_hit(block_id)

    def on_hit(self, block_id: BlockId) -> None:
        self._blocks[block_id].uses += 1
        self.on_touch(block_id)

    def on_touch(self, block_id: BlockId) -> None:
        self._stopped_at = None
        self._n_uses += 1
        block = self._blocks[block_id]
        block.worth = self._age + block.uses * block.cost
        self._heap.rank(block_id, (block.worth, self._n_uses))

    def on_remove(self, block_id: BlockId) -> None:
        block = self._blocks.pop(block_id)
        if self._stopped_at == block_id:
            self._age = max(self._age, block.worth)
        self._stopped_at = None
        self._heap.remove(block_id)
        parent = self._tree.remove(block_id)
        if parent is not None:
            self._heap.offer(parent)

    def victims(self) -> Iterator[BlockId]:
        self._stopped_at = None
        for block_id in self._heap.leaves():
            self._stopped_at = block_id
            yield block_id
        for block_id in self._heap:
            if block_id in self._tree.inner:
                self._stopped_at = block_id
                yield block_id
        self._stopped_at = None
