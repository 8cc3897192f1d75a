"""Least frequently used; among equals, least recently used.

K. Shah, A. Mitra, D. Matani: "An O(1) algorithm for implementing the LFU cache eviction scheme", technical report,
2010.

O(1) a step. Blocks lie in buckets by number of uses, and the buckets in a linked list, so that one more use is a
step to the next bucket. A search also looks at each bucket in which all blocks are set aside; there are at most as
many as different numbers of uses. Nothing ages: what was popular once stays for as long as it is cached.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered.eviction.search import Queue, QueueSearch
from tiered.types import BlockHash, BlockId


class _Bucket:
    __slots__ = ("blocks", "fewer", "more", "uses")

    def __init__(self, uses: int) -> None:
        self.uses = uses
        self.blocks = Queue()
        self.fewer = self.more = self


class LfuPolicy:
    def __init__(self) -> None:
        self._root = _Bucket(0)
        """Closes the ring of buckets: least used after it, most used before it. Holds no block."""
        self._bucket_of: dict[BlockId, _Bucket] = {}
        self._search = QueueSearch()

    def __len__(self) -> int:
        return len(self._bucket_of)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del key, parent, recompute_cost  # uses alone decide
        self._search.changed()
        self._put(block_id, self._root)

    def on_hit(self, block_id: BlockId) -> None:
        self._search.changed()
        bucket = self._bucket_of[block_id]
        bucket.blocks.remove(block_id)
        self._put(block_id, bucket)
        self._unlink_if_empty(bucket)

    def on_touch(self, block_id: BlockId) -> None:
        self._search.changed()
        self._bucket_of[block_id].blocks.renew(block_id)

    def on_remove(self, block_id: BlockId) -> None:
        self._search.settle(block_id)
        bucket = self._bucket_of.pop(block_id)
        bucket.blocks.remove(block_id)
        self._unlink_if_empty(bucket)

    def victims(self) -> Iterator[BlockId]:
        return self._search.over(self._by_uses())

    def _by_uses(self) -> Iterator[Queue]:
        bucket = self._root.more
        while bucket is not self._root:
            yield bucket.blocks
            bucket = bucket.more

    def _put(self, block_id: BlockId, below: _Bucket) -> None:
        """Into the bucket of one use more than ``below``."""
        bucket = below.more
        if bucket.uses != below.uses + 1:
            bucket = _Bucket(below.uses + 1)
            bucket.fewer, bucket.more = below, below.more
            below.more.fewer = bucket
            below.more = bucket
        bucket.blocks.append(block_id)
        self._bucket_of[block_id] = bucket

    @staticmethod
    def _unlink_if_empty(bucket: _Bucket) -> None:
        if not bucket.blocks:
            bucket.fewer.more, bucket.more.fewer = bucket.more, bucket.fewer
