"""LIRS: what returned soon is kept; what has not returned yet shares a hundredth of the cache.

S. Jiang, X. Zhang: "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy to Improve Buffer Cache
Performance", SIGMETRICS 2002.

Amortized O(1) a step, beside refusals. A block is *hot* (LIR: the time between its last two uses was short) or *cold*
(HIR). The stack orders keys by last use, from the oldest hot block up: cold ones and ghosts in it came by since. A
cold block used while in the stack returned sooner than the oldest hot one did, and takes its place. Cold blocks leave
first, by the order in which they became so.

Ghosts are as many as the pool has blocks at most; the first to become one goes first. Cold blocks get a hundredth of
the most blocks that this tenant held, for as long as that many can be held: when a hot block must leave because no
cold one is left, the measure is taken anew. With pins that happens to the only tenant as well, where a request is
longer than the cold part; the hot blocks it cost come back by being used, never merely by arriving.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from tiered.eviction.search import Queue, QueueSearch
from tiered.types import BlockHash, BlockId

COLD_SHARE: Final = 100
"""One in so many blocks is cold, as in the paper, but at least one."""


class LirsPolicy:
    def __init__(self, n_blocks: int) -> None:
        self._ghosts_max = n_blocks
        self._stack: OrderedDict[BlockHash, BlockId | None] = OrderedDict()
        """Oldest first; None is a ghost. Begins with a hot block."""
        self._ghosts: OrderedDict[BlockHash, None] = OrderedDict()
        self._search = QueueSearch()
        self._hot = Queue(self._search.tree)
        """By last use, as in the stack."""
        self._cold = Queue(self._search.tree)
        self._keys: dict[BlockId, BlockHash] = {}
        self._held_most = 0
        self._warming_up = True

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def n_ghosts(self) -> int:
        return len(self._ghosts)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del recompute_cost  # the time between uses alone decides
        self._search.changed()
        self._search.tree.add(block_id, parent)
        self._keys[block_id] = key
        self._held_most = max(self._held_most, len(self))
        returned = key in self._ghosts
        if returned:
            del self._ghosts[key], self._stack[key]
        self._stack[key] = block_id
        if returned or (self._warming_up and len(self._hot) < self._hot_max()):
            self._hot.append(block_id)
        else:
            self._cold.append(block_id)
        self._cool()

    def on_hit(self, block_id: BlockId) -> None:
        self._search.changed()
        key = self._keys[block_id]
        if block_id in self._hot:
            self._hot.renew(block_id)
            self._stack.move_to_end(key)
        elif key in self._stack:
            self._cold.remove(block_id)
            self._hot.append(block_id)
            self._stack.move_to_end(key)
        else:
            self._cold.renew(block_id)
            self._stack[key] = block_id
        self._cool()

    def on_touch(self, block_id: BlockId) -> None:
        self._search.changed()
        (self._hot if block_id in self._hot else self._cold).renew(block_id)
        key = self._keys[block_id]
        if key in self._stack:
            self._stack.move_to_end(key)
            self._prune()

    def on_remove(self, block_id: BlockId) -> None:
        self._search.settle(block_id)
        self._warming_up = False
        key = self._keys.pop(block_id)
        if block_id in self._cold:
            self._cold.remove(block_id)
        else:
            self._hot.remove(block_id)
            if not self._cold:
                self._held_most = len(self)
        self._search.forget(block_id, self._cold, self._hot)
        if key in self._stack:
            self._stack[key] = None
            self._ghosts[key] = None
            if len(self._ghosts) > self._ghosts_max:
                oldest, _ = self._ghosts.popitem(last=False)
                del self._stack[oldest]
        self._prune()

    def victims(self) -> Iterator[BlockId]:
        return self._search.over(self._cold, self._hot)

    def _hot_max(self) -> int:
        return self._held_most - max(1, self._held_most // COLD_SHARE)

    def _cool(self) -> None:
        """The oldest hot blocks become the youngest cold ones until no more are hot than may be."""
        while len(self._hot) > self._hot_max():
            oldest = self._hot.oldest()
            self._hot.remove(oldest)
            self._cold.append(oldest)
            del self._stack[self._keys[oldest]]
        self._prune()

    def _prune(self) -> None:
        """What lies below the oldest hot block came back too late, should it come back."""
        while self._stack:
            key, block_id = next(iter(self._stack.items()))
            if block_id is not None and block_id in self._hot:
                return
            del self._stack[key]
            if block_id is None:
                del self._ghosts[key]
