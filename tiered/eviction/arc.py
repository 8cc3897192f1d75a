"""ARC: blocks used once and blocks used again, each by recency, and a share between them that learns from ghosts.

N. Megiddo, D. S. Modha: "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003.

Amortized O(1) a step, beside refusals. A block that returns while its key is remembered shows which side was too
small, and moves the target.

Two things differ from the paper's one-step request, because here a victim leaves before it is known for whom. The
target moves after the eviction, not before it; and where the recent side is exactly at its target, the frequent side
gives. The paper's c is the pool: blocks and ghosts together are at most 2c. A tenant with a small part of the pool
remembers more than it holds; so the target is kept within what it holds, or it could be learned far out of reach.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from tiered.eviction.search import Queue, QueueSearch
from tiered.types import BlockHash, BlockId


class ArcPolicy:
    def __init__(self, n_blocks: int) -> None:
        self._n_blocks = n_blocks
        self._search = QueueSearch()
        self._recent = Queue(self._search.tree)  # T1 of the paper
        self._frequent = Queue(self._search.tree)  # T2
        self._recent_ghosts: OrderedDict[BlockHash, None] = OrderedDict()  # B1
        self._frequent_ghosts: OrderedDict[BlockHash, None] = OrderedDict()  # B2
        self._recent_target = 0.0  # p
        self._keys: dict[BlockId, BlockHash] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def n_ghosts(self) -> int:
        return len(self._recent_ghosts) + len(self._frequent_ghosts)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del recompute_cost  # recency and reuse alone decide
        self._search.changed()
        self._search.tree.add(block_id, parent)
        self._keys[block_id] = key
        n_recent, n_frequent = len(self._recent_ghosts), len(self._frequent_ghosts)
        if key in self._recent_ghosts:
            self._recent_target = min(self._recent_target + max(1.0, n_frequent / n_recent), len(self))
            del self._recent_ghosts[key]
            self._frequent.append(block_id)
        elif key in self._frequent_ghosts:
            self._recent_target = max(self._recent_target - max(1.0, n_recent / n_frequent), 0.0)
            del self._frequent_ghosts[key]
            self._frequent.append(block_id)
        else:
            self._recent.append(block_id)
        self._forget_oldest()

    def on_hit(self, block_id: BlockId) -> None:
        self._search.changed()
        if block_id in self._frequent:
            self._frequent.renew(block_id)
        else:
            self._recent.remove(block_id)
            self._frequent.append(block_id)

    def on_touch(self, block_id: BlockId) -> None:
        self._search.changed()
        (self._recent if block_id in self._recent else self._frequent).renew(block_id)

    def on_remove(self, block_id: BlockId) -> None:
        self._search.settle(block_id)
        key = self._keys.pop(block_id)
        if block_id in self._recent:
            self._recent.remove(block_id)
            self._recent_ghosts[key] = None
        else:
            self._frequent.remove(block_id)
            self._frequent_ghosts[key] = None
        self._search.forget(block_id, self._recent, self._frequent)

    def victims(self) -> Iterator[BlockId]:
        if len(self._recent) > self._recent_target:
            return self._search.over(self._recent, self._frequent)
        return self._search.over(self._frequent, self._recent)

    def _forget_oldest(self) -> None:
        """The recent side and its ghosts are at most c, all together at most 2c."""
        while self._recent_ghosts and len(self._recent) + len(self._recent_ghosts) > self._n_blocks:
            self._recent_ghosts.popitem(last=False)
        while self._frequent_ghosts and len(self) + self.n_ghosts > 2 * self._n_blocks:
            self._frequent_ghosts.popitem(last=False)
