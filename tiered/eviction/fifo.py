"""First in, first out: the block that became matchable first leaves first.

Amortized O(1) a step, beside refusals. The yardstick for the others: what they gain over it is what hits taught them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered.eviction.search import Queue, QueueSearch
from tiered.types import BlockHash, BlockId


class FifoPolicy:
    def __init__(self) -> None:
        self._search = QueueSearch()
        self._queue = Queue(self._search.tree)

    def __len__(self) -> int:
        return len(self._queue)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del key, recompute_cost  # the order of arrival alone decides
        self._search.changed()
        self._search.tree.add(block_id, parent)
        self._queue.append(block_id)

    def on_hit(self, block_id: BlockId) -> None:
        self._search.changed()

    on_touch = on_hit

    def on_remove(self, block_id: BlockId) -> None:
        self._search.settle(block_id)
        self._queue.remove(block_id)
        self._search.forget(block_id, self._queue)

    def victims(self) -> Iterator[BlockId]:
        return self._search.over(self._queue)
