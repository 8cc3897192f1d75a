"""SIEVE: a hand walks from the oldest block to the youngest and takes the first not hit since it last came by.

Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi: "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction
Algorithm for Web Caches", NSDI 2024.

O(1) a hit, amortized O(1) an eviction. A hit only marks its block; the hand clears marks and, unlike in CLOCK, leaves
blocks where they are, so that what arrives between two rounds is judged before what has survived one. What is no
leaf, and what the caller refuses, the hand passes by: a block in use gets one more round.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered.eviction.leaves import Tree
from tiered.eviction.search import Look
from tiered.types import BlockHash, BlockId

_NOBODY = BlockId(-1)


class _Node:
    __slots__ = ("block_id", "newer", "older", "visited")

    def __init__(self, block_id: BlockId) -> None:
        self.block_id = block_id
        self.visited = False
        self.newer = self.older = self


class SievePolicy:
    def __init__(self) -> None:
        self._root = _Node(_NOBODY)
        """Closes the ring: the oldest is newer than it, the youngest older."""
        self._hand = self._root
        """The next node to judge; the root stands for the oldest one."""
        self._nodes: dict[BlockId, _Node] = {}
        self._look: Look[_Node] = Look()
        self._tree = Tree()

    def __len__(self) -> int:
        return len(self._nodes)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del key, recompute_cost  # arrival and hits alone decide
        self._look.stopped_at = None
        self._tree.add(block_id, parent)
        node = self._nodes[block_id] = _Node(block_id)
        node.older, node.newer = self._root.older, self._root
        node.older.newer = node.newer.older = node

    def on_hit(self, block_id: BlockId) -> None:
        self._look.stopped_at = None
        self._nodes[block_id].visited = True

    def on_touch(self, block_id: BlockId) -> None:
        self._look.stopped_at = None

    def on_remove(self, block_id: BlockId) -> None:
        node = self._nodes.pop(block_id)
        passed = self._look.end(block_id)
        if passed is not None:
            for other in passed:
                other.visited = False
            self._hand = node
        if self._hand is node:
            self._hand = node.newer
        node.older.newer, node.newer.older = node.newer, node.older
        self._tree.remove(block_id)

    def victims(self) -> Iterator[BlockId]:
        look, seen, inner = self._look, self._look.begin(), self._tree.inner
        visited: list[_Node] = []
        for node in self._round():
            seen.append(node)
            if node.visited:
                visited.append(node)
            elif node.block_id not in inner:
                look.stopped_at = node.block_id
                yield node.block_id
        for node in visited:  # the second round, in which no mark is left
            seen.append(node)
            if node.block_id not in inner:
                look.stopped_at = node.block_id
                yield node.block_id
        for node in self._round():
            if node.block_id in inner:
                seen.append(node)
                look.stopped_at = node.block_id
                yield node.block_id
        look.stopped_at = None

    def _round(self) -> Iterator[_Node]:
        node = self._hand
        for _ in range(len(self._nodes)):
            if node is self._root:
                node = node.newer
            yield node
            node = node.newer
