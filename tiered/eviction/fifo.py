"""First in, first out: the block that became matchable first leaves first.

O(1) a step. The yardstick for the others: what they gain over it is what hits have taught them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered.eviction.search import Queue, QueueSearch
from tiered.types import BlockHash, BlockId


class FifoPolicy:
    def __init__(self) -> None:
        self._queue = Queue()
        self._search = QueueSearch()

    def __len__(self) -> int:
        return len(self._queue)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del key, parent, recompute_cost  # the order of arrival alone decides
        self._search.changed()
        self._queue.append(block_id)

    def on_hit(self, block_id: BlockId) -> None:
        self._search.changed()

    on_touch = on_hit

    def on_remove(self, block_id: BlockId) -> None:
        self._search.settle(block_id)
        self._queue.remove(block_id)

    def victims(self) -> Iterator[BlockId]:
        return self._search.over((self._queue,))
