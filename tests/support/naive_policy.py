"""What all models of eviction policies share: the known ids by arrival, their keys and parents."""

from __future__ import annotations

from collections.abc import Iterable, Set
from copy import deepcopy

from tiered.types import BlockHash, BlockId


class NaivePolicy:
    """What all models share: the known ids by arrival, their keys and parents."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self.keys: dict[BlockId, BlockHash] = {}
        self.parents: dict[BlockId, BlockId] = {}

    def insert(self, block_id: BlockId, key: BlockHash, parent: BlockId, cost: float) -> None:
        self.keys[block_id] = key
        self.parents[block_id] = parent
        self.arrive(block_id, key, cost)

    def remove(self, block_id: BlockId) -> None:
        self.leave(block_id)
        del self.keys[block_id], self.parents[block_id]

    def evict(self, refused: Set[BlockId]) -> BlockId | None:
        """Take out the best victim that is not refused; no change when all are."""
        if set(self.keys) <= refused:
            return None
        block_id = self.choose(refused)
        self.remove(block_id)
        return block_id

    def order(self) -> list[BlockId]:
        order: list[BlockId] = []
        while True:
            block_id = deepcopy(self).evict(set(order))
            if block_id is None:
                return order
            order.append(block_id)

    def is_leaf(self, block_id: BlockId) -> bool:
        return block_id not in self.parents.values()

    def first(self, ids: Iterable[BlockId], refused: Set[BlockId]) -> BlockId:
        """The first leaf that may be taken, else the first of all."""
        allowed = [block_id for block_id in ids if block_id not in refused]
        return next((block_id for block_id in allowed if self.is_leaf(block_id)), allowed[0])

    def arrive(self, block_id: BlockId, key: BlockHash, cost: float) -> None:
        raise NotImplementedError

    def leave(self, block_id: BlockId) -> None:
        raise NotImplementedError

    def choose(self, refused: Set[BlockId]) -> BlockId:
        raise NotImplementedError

    def hit(self, block_id: BlockId) -> None: ...

    def touch(self, block_id: BlockId) -> None: ...
