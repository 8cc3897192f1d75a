"""S3-FIFO: a small queue on probation, a main queue for what was used again, and a ghost of what left the small one.

J. Yang, Y. Zhang, Z. Qiu, Y. Yue, K. V. Rashmi: "FIFO queues are all you need for cache eviction", SOSP 2023.

The small queue is a tenth of the blocks, the ghost remembers nine tenths of the pool, and two hits on probation lead
to the main queue; there each hit, up to three, buys a block one more round. Amortized O(1) a step, beside refusals.

The tenth is of the blocks known here, which for the only tenant of a full pool is the paper's tenth of the cache. A
tenant with a small part of the pool would otherwise never fill its small queue, and lose its main queue first.

A search passes by what is no leaf: that is judged by its hits as any other, but it cannot go. It waits, first in line
once it is a leaf; hits meanwhile take it to the main queue, or to its end, at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from tiered.eviction.search import Queue, QueueSearch
from tiered.types import BlockHash, BlockId

SMALL_SHARE: Final = 10
"""One in so many blocks is on probation."""
PROMOTED_AT: Final = 2
HITS_COUNTED: Final = 3


class S3FifoPolicy:
    def __init__(self, n_blocks: int) -> None:
        self._ghosts_max = n_blocks - n_blocks // SMALL_SHARE
        self._search = QueueSearch()
        self._small = Queue(self._search.tree)
        self._main = Queue(self._search.tree)
        self._hits: dict[BlockId, int] = {}
        self._keys: dict[BlockId, BlockHash] = {}
        self._ghosts: OrderedDict[BlockHash, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def n_ghosts(self) -> int:
        return len(self._ghosts)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del recompute_cost  # arrival and hits alone decide
        self._search.changed()
        self._search.tree.add(block_id, parent)
        self._keys[block_id] = key
        self._hits[block_id] = 0
        if key in self._ghosts:
            del self._ghosts[key]
            self._main.append(block_id)
        else:
            self._small.append(block_id)

    def on_hit(self, block_id: BlockId) -> None:
        self._search.changed()
        hits = self._hits[block_id]
        if hits < HITS_COUNTED:
            self._hits[block_id] = hits + 1
        # A search that has come by will not come again.
        if block_id in self._small.passed and hits + 1 >= PROMOTED_AT:
            self._promote(block_id)
        elif block_id in self._main.passed:
            self._main.renew(block_id)

    def on_touch(self, block_id: BlockId) -> None:
        self._search.changed()

    def on_remove(self, block_id: BlockId) -> None:
        for _, other in self._search.look.end(block_id) or ():
            self._pass_by(other)
        key = self._keys.pop(block_id)
        del self._hits[block_id]
        if block_id in self._main:
            self._main.remove(block_id)
        else:
            self._small.remove(block_id)
            self._ghosts[key] = None
            if len(self._ghosts) > self._ghosts_max:
                self._ghosts.popitem(last=False)
        self._search.forget(block_id, self._small, self._main)

    def victims(self) -> Iterator[BlockId]:
        look, seen = self._search.look, self._search.look.begin()
        for queue, block_id, proposed in self._walk():
            seen.append((queue, block_id))
            if proposed:
                look.stopped_at = block_id
                yield block_id
        look.stopped_at = None

    def _walk(self) -> Iterator[tuple[Queue, BlockId, bool]]:
        """What a search comes by, and whether it proposes it; ``_pass_by`` of each does what this only thinks."""
        small, main, inner = self._small, self._main, self._search.tree.inner
        promoted: list[BlockId] = []
        small_is_full = SMALL_SHARE * len(small) >= len(self)
        if not small_is_full:
            yield from self._rounds([])
        yield from ((small, block_id, True) for block_id in small.passed.leaves())
        for block_id in small.ahead:
            is_promoted = self._hits[block_id] >= PROMOTED_AT
            if is_promoted:
                promoted.append(block_id)
            yield small, block_id, not is_promoted and block_id not in inner
        if small_is_full:
            yield from self._rounds(promoted)
        else:
            yield from ((main, block_id, block_id not in inner) for block_id in promoted)
        yield from ((queue, block_id, True) for queue, block_id in self._search.not_leaves((small, main)))

    def _rounds(self, promoted: list[BlockId]) -> Iterator[tuple[Queue, BlockId, bool]]:
        """Through the main queue and what was promoted behind it, until each has used up its hits."""
        main, inner = self._main, self._search.tree.inner
        yield from ((main, block_id, True) for block_id in main.passed.leaves())
        again: list[tuple[BlockId, int]] = []
        for block_id in main.ahead:
            left = self._hits[block_id]
            if left:
                again.append((block_id, left - 1))
            yield main, block_id, not left and block_id not in inner
        yield from ((main, block_id, block_id not in inner) for block_id in promoted)
        while again:
            current, again = again, []
            for block_id, left in current:
                if left:
                    again.append((block_id, left - 1))
                yield main, block_id, not left and block_id not in inner

    def _pass_by(self, block_id: BlockId) -> None:
        if block_id in self._small.ahead:
            if self._hits[block_id] >= PROMOTED_AT:
                self._promote(block_id)
            else:
                self._small.pass_by(block_id)
        elif block_id in self._main.ahead:
            if self._hits[block_id]:
                self._hits[block_id] -= 1
                self._main.renew(block_id)
            else:
                self._main.pass_by(block_id)

    def _promote(self, block_id: BlockId) -> None:
        self._hits[block_id] = 0
        self._small.remove(block_id)
        self._main.append(block_id)
