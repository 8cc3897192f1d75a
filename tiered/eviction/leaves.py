"""Which known blocks are leaves, and a heap of those: only a leaf may leave, so only leaves are worth proposing.

A policy that ranks blocks by anything but recency would often propose a prefix before what hangs on it, be refused,
and meet the whole prefix again in its next search. Here a block with children waits outside until it has none.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Final, TypeAlias

from tiered.types import BlockId

HEAP_SPARE: Final = 64
"""Dead entries that a small heap may hold beyond its living ones, so that it is not rebuilt at every step."""

Rank: TypeAlias = tuple[float, int]
"""What leaves first has the lowest. The second part is a number used once, so no two blocks are equal."""


class Tree:
    """Parents of the known blocks. A parent may be unknown: another tenant's, or told of later. O(1) a step."""

    def __init__(self) -> None:
        self._parent: dict[BlockId, BlockId] = {}
        self.inner: Counter[BlockId] = Counter()
        """Known children of each block that has any."""

    def add(self, block_id: BlockId, parent: BlockId) -> None:
        self._parent[block_id] = parent
        self.inner[parent] += 1

    def remove(self, block_id: BlockId) -> BlockId | None:
        """Returns its parent, if that has no children any more."""
        parent = self._parent.pop(block_id)
        self.inner[parent] -= 1
        if self.inner[parent]:
            return None
        del self.inner[parent]
        return parent


class LeafHeap:
    """Ranked ids. Gives the leaves among them, best first. A rank may only grow while its id is here.

    Cost: O(1) for a new rank; O(log n) for an id, for a leaf looked at, and for one that was ranked anew since.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._ranks: OrderedDict[BlockId, Rank] = OrderedDict()
        self._heap: list[tuple[Rank, BlockId]] = []
        self._queued: dict[BlockId, Rank] = {}
        """The rank by which an id stands in the heap, perhaps an earlier and so lower one; others there are dead."""
        self._looked_at: list[tuple[Rank, BlockId]] = []
        """Taken out of the heap by the newest look."""

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._ranks

    def __iter__(self) -> Iterator[BlockId]:
        """All ids, in the order in which they came."""
        return iter(self._ranks)

    def rank(self, block_id: BlockId, rank: Rank) -> None:
        self._ranks[block_id] = rank
        self.offer(block_id)

    def remove(self, block_id: BlockId) -> None:
        del self._ranks[block_id]
        self._queued.pop(block_id, None)

    def offer(self, block_id: BlockId) -> None:
        """It may have become a leaf; no matter if it is not one, or not here."""
        if block_id in self._queued or block_id in self._tree.inner or block_id not in self._ranks:
            return
        rank = self._queued[block_id] = self._ranks[block_id]
        heapq.heappush(self._heap, (rank, block_id))
        if len(self._heap) > 2 * len(self._queued) + HEAP_SPARE:
            self._looked_at.clear()
            self._heap = [(rank, block_id) for block_id, rank in self._queued.items()]
            heapq.heapify(self._heap)

    def leaves(self) -> Iterator[BlockId]:
        """One look at a time; not across a change."""
        looked_at, self._looked_at = self._looked_at, []
        for entry in looked_at:
            heapq.heappush(self._heap, entry)
        while self._heap:
            rank, block_id = entry = heapq.heappop(self._heap)
            if self._queued.get(block_id) != rank:
                continue
            current = self._ranks[block_id]
            if block_id in self._tree.inner:
                del self._queued[block_id]
            elif current != rank:
                self._queued[block_id] = current
                heapq.heappush(self._heap, (current, block_id))
            else:
                self._looked_at.append(entry)
                yield block_id
