"""Every eviction policy a second time: slow and plain, with lists and sorting, to hold the real ones to.

A model knows what a search may not take (``refused``) and carries its paper's algorithm out on itself. It has no
looks that change nothing and no lazy heaps: ``order`` asks a copy of the model again and again, each time refusing
all that was proposed before. All but LRU take what is no leaf only when every leaf is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from tests.support.naive_hazard import NaiveHazard
from tests.support.naive_policy import NaivePolicy
from tiered.types import BlockHash, BlockId


def renew(queue: list[BlockId], block_id: BlockId) -> None:
    queue.remove(block_id)
    queue.append(block_id)


class NaiveLru(NaivePolicy):
    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.oldest_first: list[BlockId] = []

    def arrive(self, block_id: BlockId, key: BlockHash, cost: float) -> None:
        self.oldest_first.append(block_id)

    def leave(self, block_id: BlockId) -> None:
        self.oldest_first.remove(block_id)

    def touch(self, block_id: BlockId) -> None:
        renew(self.oldest_first, block_id)

    hit = touch

    def choose(self, refused: Set[BlockId]) -> BlockId:
        return next(block_id for block_id in self.oldest_first if block_id not in refused)


class NaiveFifo(NaivePolicy):
    def arrive(self, block_id: BlockId, key: BlockHash, cost: float) -> None: ...

    def leave(self, block_id: BlockId) -> None: ...

    def choose(self, refused: Set[BlockId]) -> BlockId:
        return self.first(self.keys, refused)


class NaiveLfu(NaivePolicy):
    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.by_last_use: list[BlockId] = []
        self.uses: dict[BlockId, int] = {}

    def arrive(self, block_id: BlockId, key: BlockHash, cost: float) -> None:
        self.by_last_use.append(block_id)
        self.uses[block_id] = 1

    def leave(self, block_id: BlockId) -> None:
        self.by_last_use.remove(block_id)

    def hit(self, block_id: BlockId) -> None:
        self.uses[block_id] += 1
        self.touch(block_id)

    def touch(self, block_id: BlockId) -> None:
        renew(self.by_last_use, block_id)

    def choose(self, refused: Set[BlockId]) -> BlockId:
        leaves = sorted(filter(self.is_leaf, self.by_last_use), key=lambda block_id: self.uses[block_id])
        return self.first([*leaves, *self.keys], refused)


class NaiveSieve(NaivePolicy):
    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.oldest_first: list[BlockId] = []
        self.visited: set[BlockId] = set()
        self.hand: BlockId | None = None
        """None: the oldest."""

    def arrive(self, block_id: BlockId, key: BlockHash, cost: float) -> None:
        self.oldest_first.append(block_id)

    def newer(self, block_id: BlockId) -> BlockId | None:
        index = self.oldest_first.index(block_id) + 1
        return self.oldest_first[index] if index < len(self.oldest_first) else None

    def leave(self, block_id: BlockId) -> None:
        if self.hand == block_id:
            self.hand = self.newer(block_id)
        self.oldest_first.remove(block_id)
        self.visited.discard(block_id)

    def hit(self, block_id: BlockId) -> None:
        self.visited.add(block_id)

    def choose(self, refused: Set[BlockId]) -> BlockId:
        any_leaf = any(self.is_leaf(block_id) for block_id in self.keys if block_id not in refused)
        if not any_leaf:
            self.visited.clear()  # the hand has been round twice
        while True:
            block_id = self.oldest_first[0] if self.hand is None else self.hand
            may_go = block_id not in refused and (self.is_leaf(block_id) or not any_leaf)
            self.hand = block_id
            if may_go and block_id not in self.visited:
                return block_id
            self.visited.discard(block_id)
            self.hand = self.newer(block_id)


class NaiveS3Fifo(NaivePolicy):
    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.small: list[BlockId] = []
        self.main: list[BlockId] = []
        self.hits: dict[BlockId, int] = {}
        self.ghosts: list[BlockHash] = []
        self.passed: set[BlockId] = set()
        """What a search came by, and left where it was, since it was put into its queue."""

    def arrive(self, block_id: BlockId, key: BlockHash, cost: float) -> None:
        (self.main if key in self.ghosts else self.small).append(block_id)
        self.ghosts = [ghost for ghost in self.ghosts if ghost != key]
        self.hits[block_id] = 0

    def hit(self, block_id: BlockId) -> None:
        self.hits[block_id] = min(3, self.hits[block_id] + 1)
        if block_id in self.passed and block_id in self.main:
            self.to_main(block_id)
        elif block_id in self.passed and self.hits[block_id] >= 2:
            self.promote(block_id)

    def leave(self, block_id: BlockId) -> None:
        if block_id in self.small:
            n_ghosts = self.n_blocks - self.n_blocks // 10
            self.ghosts = [*self.ghosts, self.keys[block_id]][-n_ghosts:]
        (self.small if block_id in self.small else self.main).remove(block_id)
        self.passed.discard(block_id)

    def to_main(self, block_id: BlockId) -> None:
        (self.small if block_id in self.small else self.main).remove(block_id)
        self.main.append(block_id)
        self.passed.discard(block_id)

    def promote(self, block_id: BlockId) -> None:
        self.hits[block_id] = 0
        self.to_main(block_id)

    def choose(self, refused: Set[BlockId]) -> BlockId:
        before = [*self.small, *self.main]
        small_first = len(self.small) >= len(self.keys) / 10
        for queue in ["small", "main"] if small_first else ["main", "small", "main"]:
            block_id = self.from_small(refused) if queue == "small" else self.from_main(refused)
            if block_id is not None:
                return block_id
        return self.first(before, refused)

    def from_small(self, refused: Set[BlockId]) -> BlockId | None:
        for block_id in list(self.small):
            if self.hits[block_id] >= 2 and block_id not in self.passed:
                self.promote(block_id)
            elif self.is_leaf(block_id) and block_id not in refused:
                return block_id
            else:
                self.passed.add(block_id)
        return None

    def from_main(self, refused: Set[BlockId]) -> BlockId | None:
        for block_id in [b for b in self.main if b in self.passed]:
            if self.is_leaf(block_id) and block_id not in refused:
                return block_id
        while True:
            ahead = [b for b in self.main if b not in self.passed]
            if not ahead:
                return None
            block_id = ahead[0]
            if self.hits[block_id]:
                self.hits[block_id] -= 1
                self.to_main(block_id)
            elif self.is_leaf(block_id) and block_id not in refused:
                return block_id
            else:
                self.passed.add(block_id)


class NaiveArc(NaivePolicy):
    """Named as in the paper: t1, t2, b1, b2, p, c."""

    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.t1: list[BlockId] = []
        self.t2: list[BlockId] = []
        self.b1: list[BlockHash] = []
        self.b2: list[BlockHash] = []
        self.p = 0.0

    def choose(self, refused: Set[BlockId]) -> BlockId:
        return self.first(self.t1 + self.t2 if len(self.t1) > self.p else self.t2 + self.t1, refused)

    def arrive(self, block_id: BlockId, key: BlockHash, cost: float) -> None:
        c, held = self.n_blocks, len(self.keys)
        if key in self.b1:
            self.p = min(held, self.p + max(1.0, len(self.b2) / len(self.b1)))
            self.b1.remove(key)
            self.t2.append(block_id)
        elif key in self.b2:
            self.p = max(0.0, self.p - max(1.0, len(self.b1) / len(self.b2)))
            self.b2.remove(key)
            self.t2.append(block_id)
        else:
            self.t1.append(block_id)
        self.b1 = self.b1[max(0, len(self.t1) + len(self.b1) - c) :]
        self.b2 = self.b2[max(0, held + len(self.b1) + len(self.b2) - 2 * c) :]

    def hit(self, block_id: BlockId) -> None:
        (self.t1 if block_id in self.t1 else self.t2).remove(block_id)
        self.t2.append(block_id)

    def touch(self, block_id: BlockId) -> None:
        renew(self.t1 if block_id in self.t1 else self.t2, block_id)

    def leave(self, block_id: BlockId) -> None:
        alive, ghosts = (self.t1, self.b1) if block_id in self.t1 else (self.t2, self.b2)
        alive.remove(block_id)
        ghosts.append(self.keys[block_id])


class NaiveLirs(NaivePolicy):
    """s and q are the paper's stack and queue; a key in s is hot, cold, or, when nothing has it, a ghost."""

    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.s: list[BlockHash] = []
        self.q: list[BlockId] = []
        self.hot: list[BlockId] = []
        self.ghosts: list[BlockHash] = []
        self.held_most = 0
        self.anything_left = False

    def choose(self, refused: Set[BlockId]) -> BlockId:
        return self.first(self.q + self.hot, refused)

    def hot_max(self) -> int:
        return self.held_most - max(1, self.held_most // 100)

    def on_top(self, key: BlockHash) -> None:
        self.s = [other for other in self.s if other != key] + [key]

    def cool(self) -> None:
        while len(self.hot) > self.hot_max():
            oldest = self.hot[0]
            self.hot.remove(oldest)
            self.q.append(oldest)
            self.s.remove(self.keys[oldest])
        self.prune()

    def arrive(self, block_id: BlockId, key: BlockHash, cost: float) -> None:
        self.held_most = max(self.held_most, len(self.keys))
        returned = key in self.ghosts
        self.ghosts = [ghost for ghost in self.ghosts if ghost != key]
        self.on_top(key)
        starts_hot = not self.anything_left and len(self.hot) < self.hot_max()
        (self.hot if returned or starts_hot else self.q).append(block_id)
        self.cool()

    def hit(self, block_id: BlockId) -> None:
        if block_id in self.hot:
            renew(self.hot, block_id)
        elif self.keys[block_id] in self.s:
            self.q.remove(block_id)
            self.hot.append(block_id)
        else:
            renew(self.q, block_id)
        self.on_top(self.keys[block_id])
        self.cool()

    def touch(self, block_id: BlockId) -> None:
        renew(self.hot if block_id in self.hot else self.q, block_id)
        if self.keys[block_id] in self.s:
            self.on_top(self.keys[block_id])
            self.prune()

    def leave(self, block_id: BlockId) -> None:
        self.anything_left = True
        was_hot = block_id in self.hot
        (self.hot if was_hot else self.q).remove(block_id)
        if was_hot and not self.q:
            self.held_most = len(self.keys) - 1
        key = self.keys[block_id]
        if key in self.s:
            self.ghosts.append(key)
            if len(self.ghosts) > self.n_blocks:
                self.s.remove(self.ghosts.pop(0))
        self.prune()

    def prune(self) -> None:
        hot = [self.keys[block_id] for block_id in self.hot]
        while self.s and self.s[0] not in hot:
            self.s.pop(0)
        self.ghosts = [key for key in self.ghosts if key in self.s]


class NaiveCost(NaivePolicy):
    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.cost: dict[BlockId, float] = {}
        self.uses: dict[BlockId, int] = {}
        self.worth: dict[BlockId, float] = {}
        self.by_last_use: list[BlockId] = []
        self.age = 0.0

    def arrive(self, block_id: BlockId, key: BlockHash, cost: float) -> None:
        self.cost[block_id], self.uses[block_id] = cost, 0
        self.by_last_use.append(block_id)
        self.hit(block_id)

    def leave(self, block_id: BlockId) -> None:
        self.by_last_use.remove(block_id)

    def hit(self, block_id: BlockId) -> None:
        self.uses[block_id] += 1
        self.touch(block_id)

    def touch(self, block_id: BlockId) -> None:
        self.worth[block_id] = self.age + self.uses[block_id] * self.cost[block_id]
        renew(self.by_last_use, block_id)

    def choose(self, refused: Set[BlockId]) -> BlockId:
        leaves = sorted(filter(self.is_leaf, self.by_last_use), key=lambda block_id: self.worth[block_id])
        block_id = self.first([*leaves, *self.keys], refused)
        self.age = max(self.age, self.worth[block_id])
        return block_id


NAIVE: Final[dict[str, Callable[[int], NaivePolicy]]] = {
    "arc": NaiveArc,
    "cost": NaiveCost,
    "fifo": NaiveFifo,
    "hazard": NaiveHazard,
    "lfu": NaiveLfu,
    "lirs": NaiveLirs,
    "lru": NaiveLru,
    "s3fifo": NaiveS3Fifo,
    "sieve": NaiveSieve,
}
