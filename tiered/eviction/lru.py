"""Least recently used: the block untouched for longest leaves first.

O(1) a step. An ordered dict holds ids from oldest to youngest. What is in use was touched last and so is proposed
last: nothing is gained here by remembering refusals.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from tiered.types import BlockHash, BlockId


class LruPolicy:
    def __init__(self) -> None:
        self._order: OrderedDict[BlockId, None] = OrderedDict()
        self.on_hit = self.on_touch = self._order.move_to_end  # one C call on the hottest path

    def __len__(self) -> int:
        return len(self._order)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del key, parent, recompute_cost  # recency alone decides
        self._order[block_id] = None

    def on_remove(self, block_id: BlockId) -> None:
        del self._order[block_id]

    def victims(self) -> Iterator[BlockId]:
        return iter(self._order)
