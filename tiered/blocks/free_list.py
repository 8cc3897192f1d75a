"""Queue of free block ids with O(1) removal from the middle."""

from __future__ import annotations

from collections import OrderedDict

from tiered.types import BlockId


class FreeList:
    """Free ids in the order in which they became free; the oldest is taken first.

    An OrderedDict keeps that order and removes from anywhere in O(1); a plain dict would scan the places of what
    was taken before.
    """

    def __init__(self, n_blocks: int) -> None:
        self._ids = OrderedDict.fromkeys(BlockId(i) for i in range(n_blocks))

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, block_id: BlockId) -> bool:
        return block_id in self._ids

    def take(self) -> BlockId | None:
        """The id that has been free longest, or None when there is none."""
        return self._ids.popitem(last=False)[0] if self._ids else None

    def give(self, block_id: BlockId) -> None:
        self._ids[block_id] = None
