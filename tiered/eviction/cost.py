"""Cost: what is dear to compute again and often used stays; what lies idle ages away.

L. Cherkasova: "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Laboratories
technical report HPL-98-69, 1998.

A block is worth its uses times its recompute cost, all blocks being of one size, on top of the age of the cache when
it was last used; the age is the worth of the last block that was evicted. Equals leave by last use.

The cost grows with depth, so by worth alone a prefix would be proposed before what hangs on it, and refused. So only
leaves are in the heap, and blocks with known children come after all of them. O(1) a hit; O(log n) an eviction, and
as much for each refusal before it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias

from tiered.types import BlockHash, BlockId

HEAP_SPARE: Final = 64
"""Dead entries that a small heap may hold beyond twice its blocks, so that it is not rebuilt at every step."""


class _Block:
    __slots__ = ("block_id", "cost", "in_heap", "last_use", "parent", "uses", "worth")

    def __init__(self, block_id: BlockId, cost: float, parent: BlockId) -> None:
        self.block_id = block_id
        self.cost = cost
        self.parent = parent
        self.uses = 0
        self.worth = 0.0
        self.last_use = 0
        self.in_heap = False


_Entry: TypeAlias = tuple[float, int, _Block]
"""Worth and number of the last use when it was pushed. No two entries agree in both."""


class CostPolicy:
    def __init__(self) -> None:
        self._blocks: dict[BlockId, _Block] = {}
        self._children: Counter[BlockId] = Counter()
        self._heap: list[_Entry] = []
        """At most one entry for each known block. It may be of an earlier use: worth only grows, so it is found in
        time and put where it belongs."""
        self._looked_at: list[_Entry] = []
        """Entries that the newest look took out of the heap."""
        self._stopped_at: BlockId | None = None
        self._age = 0.0
        self._n_uses = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del key  # what left is not remembered
        block = self._blocks[block_id] = _Block(block_id, recompute_cost, parent)
        self._children[parent] += 1
        self._use(block, 1)
        self._offer(block)

    def on_hit(self, block_id: BlockId) -> None:
        self._use(self._blocks[block_id], 1)

    def on_touch(self, block_id: BlockId) -> None:
        self._use(self._blocks[block_id], 0)

    def on_remove(self, block_id: BlockId) -> None:
        block = self._blocks.pop(block_id)
        if self._stopped_at == block_id:
            self._age = max(self._age, block.worth)
        self._stopped_at = None
        self._children[block.parent] -= 1
        if not self._children[block.parent]:
            del self._children[block.parent]
            parent = self._blocks.get(block.parent)
            if parent is not None:
                self._offer(parent)

    def victims(self) -> Iterator[BlockId]:
        looked_at, self._looked_at, self._stopped_at = self._looked_at, [], None
        for entry in looked_at:
            if self._is_known(entry[2]):
                heapq.heappush(self._heap, entry)
        while self._heap:
            entry = heapq.heappop(self._heap)
            block = entry[2]
            if not self._is_known(block):
                continue
            if block.block_id in self._children:
                block.in_heap = False
            elif entry[1] != block.last_use:
                heapq.heappush(self._heap, (block.worth, block.last_use, block))
            else:
                self._looked_at.append(entry)
                self._stopped_at = block.block_id
                yield block.block_id
        for block_id in self._blocks:
            if block_id in self._children:
                self._stopped_at = block_id
                yield block_id
        self._stopped_at = None

    def _is_known(self, block: _Block) -> bool:
        return self._blocks.get(block.block_id) is block

    def _use(self, block: _Block, n_uses: int) -> None:
        self._stopped_at = None
        self._n_uses += 1
        block.last_use = self._n_uses
        block.uses += n_uses
        block.worth = self._age + block.uses * block.cost

    def _offer(self, block: _Block) -> None:
        """Into the heap, if it is a leaf and not there yet."""
        if block.in_heap or block.block_id in self._children:
            return
        block.in_heap = True
        heapq.heappush(self._heap, (block.worth, block.last_use, block))
        if len(self._heap) > 2 * len(self._blocks) + HEAP_SPARE:
            self._heap = [entry for entry in self._heap if self._is_known(entry[2])]
            heapq.heapify(self._heap)
