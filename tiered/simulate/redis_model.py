"""The Redis tier as its ledger keeps it, without bytes: blocks by last touch, the tail of a prefix the oldest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from tiered.types import BlockHash


class RedisModel:
    """Room for ``n_blocks``; 0 keeps nothing."""

    def __init__(self, n_blocks: int) -> None:
        self._n_blocks = n_blocks
        self._order: OrderedDict[BlockHash, None] = OrderedDict()

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._order

    def __len__(self) -> int:
        return len(self._order)

    def touch(self, prefix: Sequence[BlockHash]) -> None:
        """A prefix was used; of what is here the deepest becomes the oldest."""
        for block_hash in reversed(prefix):
            if block_hash in self._order:
                self._order.move_to_end(block_hash)

    def put(self, blocks: Sequence[BlockHash]) -> int:
        """Store what is not here yet, in the order given, the last the youngest; returns how many were written."""
        written = 0
        for block_hash in blocks:
            if block_hash not in self._order:
                self._order[block_hash] = None
                written += 1
        while len(self._order) > self._n_blocks:
            self._order.popitem(last=False)
        return written
