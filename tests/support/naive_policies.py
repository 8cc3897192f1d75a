"""Every eviction policy a second time: slow and plain, with lists and sorting, to hold the real ones to.

A model knows what a search may not take (``refused``) and carries its paper's algorithm out on itself. It has no
looks that change nothing, no queues with two ends and no lazy heaps: ``order`` asks a copy of the model again and
again, each time refusing all that was proposed before.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from copy import deepcopy
from typing import Final

from tiered.eviction import search
from tiered.types import BlockHash, BlockId


class NaivePolicy:
    """What all models share: the known ids by arrival, and their keys."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self.keys: dict[BlockId, BlockHash] = {}

    def insert(self, block_id: BlockId, key: BlockHash, parent: BlockId, cost: float) -> None:
        self.keys[block_id] = key
        self.arrive(block_id, key, parent, cost)

    def remove(self, block_id: BlockId) -> None:
        self.leave(block_id)
        del self.keys[block_id]

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

    def arrive(self, block_id: BlockId, key: BlockHash, parent: BlockId, cost: float) -> None:
        raise NotImplementedError

    def leave(self, block_id: BlockId) -> None:
        raise NotImplementedError

    def choose(self, refused: Set[BlockId]) -> BlockId:
        raise NotImplementedError

    def hit(self, block_id: BlockId) -> None: ...

    def touch(self, block_id: BlockId) -> None: ...


class NaiveLru(NaivePolicy):
    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.oldest_first: list[BlockId] = []

    def arrive(self, block_id: BlockId, key: BlockHash, parent: BlockId, cost: float) -> None:
        self.oldest_first.append(block_id)

    def leave(self, block_id: BlockId) -> None:
        self.oldest_first.remove(block_id)

    def touch(self, block_id: BlockId) -> None:
        self.oldest_first.remove(block_id)
        self.oldest_first.append(block_id)

    hit = touch

    def choose(self, refused: Set[BlockId]) -> BlockId:
        return next(block_id for block_id in self.oldest_first if block_id not in refused)


class NaiveQueues(NaivePolicy):
    """Models that propose from lists, one after the other, and set aside what was refused."""

    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.aside: set[BlockId] = set()
        self.n_aside = self.n_evicted = 0

    def queues(self) -> list[list[BlockId]]:
        """Best list first, each with its oldest first."""
        raise NotImplementedError

    def ahead(self, queue: list[BlockId]) -> list[BlockId]:
        return [block_id for block_id in queue if block_id not in self.aside]

    def choose(self, refused: Set[BlockId]) -> BlockId:
        return self.walk(self.queues(), refused)

    def walk(self, queues: list[list[BlockId]], refused: Set[BlockId]) -> BlockId:
        youngest_aside = [b for queue in queues for b in reversed(queue) if b in self.aside]
        for block_id in [b for queue in queues for b in self.ahead(queue)]:
            if block_id not in refused:
                return self.chosen(block_id)
            self.set_aside(block_id)
        return self.chosen(next(block_id for block_id in youngest_aside if block_id not in refused))

    def set_aside(self, block_id: BlockId) -> None:
        self.aside.add(block_id)
        self.n_aside += 1

    def chosen(self, block_id: BlockId) -> BlockId:
        self.n_evicted += 1
        if search.RETRIES_PER_EVICTION * self.n_evicted >= self.n_aside:
            self.aside.clear()
            self.n_aside = self.n_evicted = 0
        return block_id

    def take_out(self, queue: list[BlockId], block_id: BlockId) -> None:
        queue.remove(block_id)
        self.aside.discard(block_id)

    def renew(self, queue: list[BlockId], block_id: BlockId) -> None:
        self.take_out(queue, block_id)
        queue.append(block_id)


class NaiveFifo(NaiveQueues):
    def queues(self) -> list[list[BlockId]]:
        return [list(self.keys)]

    def arrive(self, block_id: BlockId, key: BlockHash, parent: BlockId, cost: float) -> None: ...

    def leave(self, block_id: BlockId) -> None:
        self.aside.discard(block_id)


class NaiveLfu(NaiveQueues):
    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.by_last_use: list[BlockId] = []
        self.uses: dict[BlockId, int] = {}

    def queues(self) -> list[list[BlockId]]:
        return [[b for b in self.by_last_use if self.uses[b] == uses] for uses in sorted(set(self.uses.values()))]

    def arrive(self, block_id: BlockId, key: BlockHash, parent: BlockId, cost: float) -> None:
        self.by_last_use.append(block_id)
        self.uses[block_id] = 1

    def leave(self, block_id: BlockId) -> None:
        self.take_out(self.by_last_use, block_id)
        del self.uses[block_id]

    def hit(self, block_id: BlockId) -> None:
        self.uses[block_id] += 1
        self.touch(block_id)

    def touch(self, block_id: BlockId) -> None:
        self.renew(self.by_last_use, block_id)


class NaiveSieve(NaivePolicy):
    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.oldest_first: list[BlockId] = []
        self.visited: set[BlockId] = set()
        self.hand: BlockId | None = None
        """None: the oldest."""

    def arrive(self, block_id: BlockId, key: BlockHash, parent: BlockId, cost: float) -> None:
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
        while True:
            block_id = self.oldest_first[0] if self.hand is None else self.hand
            if block_id not in self.visited and block_id not in refused:
                self.hand = block_id
                return block_id
            self.visited.discard(block_id)
            self.hand = self.newer(block_id)


class NaiveS3Fifo(NaiveQueues):
    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.small: list[BlockId] = []
        self.main: list[BlockId] = []
        self.hits: dict[BlockId, int] = {}
        self.ghosts: list[BlockHash] = []

    def arrive(self, block_id: BlockId, key: BlockHash, parent: BlockId, cost: float) -> None:
        (self.main if key in self.ghosts else self.small).append(block_id)
        self.ghosts = [ghost for ghost in self.ghosts if ghost != key]
        self.hits[block_id] = 0

    def hit(self, block_id: BlockId) -> None:
        self.hits[block_id] = min(3, self.hits[block_id] + 1)

    def leave(self, block_id: BlockId) -> None:
        if block_id in self.small:
            self.take_out(self.small, block_id)
            n_ghosts = self.n_blocks - self.n_blocks // 10
            self.ghosts = [*self.ghosts, self.keys[block_id]][-n_ghosts:]
        else:
            self.take_out(self.main, block_id)
        del self.hits[block_id]

    def choose(self, refused: Set[BlockId]) -> BlockId:
        aside = [b for queue in (self.small, self.main) for b in reversed(queue) if b in self.aside]
        small_first = len(self.small) >= len(self.keys) / 10
        steps = [self.from_small, self.from_main] if small_first else [self.from_main, self.from_small, self.from_main]
        for step in steps:
            block_id = step(refused)
            if block_id is not None:
                return self.chosen(block_id)
        return self.chosen(next(block_id for block_id in aside if block_id not in refused))

    def from_small(self, refused: Set[BlockId]) -> BlockId | None:
        while self.ahead(self.small):
            block_id = self.ahead(self.small)[0]
            if self.hits[block_id] >= 2:
                self.small.remove(block_id)
                self.main.append(block_id)
                self.hits[block_id] = 0
            elif block_id in refused:
                self.set_aside(block_id)
            else:
                return block_id
        return None

    def from_main(self, refused: Set[BlockId]) -> BlockId | None:
        while self.ahead(self.main):
            block_id = self.ahead(self.main)[0]
            if self.hits[block_id]:
                self.hits[block_id] -= 1
                self.renew(self.main, block_id)
            elif block_id in refused:
                self.set_aside(block_id)
            else:
                return block_id
        return None


class NaiveArc(NaiveQueues):
    """Named as in the paper: t1, t2, b1, b2, p, c."""

    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.t1: list[BlockId] = []
        self.t2: list[BlockId] = []
        self.b1: list[BlockHash] = []
        self.b2: list[BlockHash] = []
        self.p = 0.0

    def queues(self) -> list[list[BlockId]]:
        return [self.t1, self.t2] if len(self.t1) > self.p else [self.t2, self.t1]

    def arrive(self, block_id: BlockId, key: BlockHash, parent: BlockId, cost: float) -> None:
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
        self.take_out(self.t1 if block_id in self.t1 else self.t2, block_id)
        self.t2.append(block_id)

    def touch(self, block_id: BlockId) -> None:
        self.renew(self.t1 if block_id in self.t1 else self.t2, block_id)

    def leave(self, block_id: BlockId) -> None:
        alive, ghosts = (self.t1, self.b1) if block_id in self.t1 else (self.t2, self.b2)
        self.take_out(alive, block_id)
        ghosts.append(self.keys[block_id])


class NaiveLirs(NaiveQueues):
    """s and q are the paper's stack and queue; a key in s is hot, cold, or, when nothing has it, a ghost."""

    def __init__(self, n_blocks: int) -> None:
        super().__init__(n_blocks)
        self.s: list[BlockHash] = []
        self.q: list[BlockId] = []
        self.hot: list[BlockId] = []
        self.ghosts: list[BlockHash] = []
        self.held_most = 0
        self.anything_left = False

    def queues(self) -> list[list[BlockId]]:
        return [self.q, self.hot]

    def hot_max(self) -> int:
        return self.held_most - max(1, self.held_most // 100)

    def on_top(self, key: BlockHash) -> None:
        self.s = [other for other in self.s if other != key] + [key]

    def settle(self) -> None:
        while len(self.hot) > self.hot_max():
            oldest = self.hot[0]
            self.take_out(self.hot, oldest)
            self.q.append(oldest)
            self.s.remove(self.keys[oldest])
        self.prune()

    def arrive(self, block_id: BlockId, key: BlockHash, parent: BlockId, cost: float) -> None:
        self.held_most = max(self.held_most, len(self.keys))
        returned = key in self.ghosts
        self.ghosts = [ghost for ghost in self.ghosts if ghost != key]
        self.on_top(key)
        starts_hot = not self.anything_left and len(self.hot) < self.hot_max()
        (self.hot if returned or starts_hot else self.q).append(block_id)
        self.settle()

    def hit(self, block_id: BlockId) -> None:
        if block_id in self.hot:
            self.renew(self.hot, block_id)
        elif self.keys[block_id] in self.s:
            self.take_out(self.q, block_id)
            self.hot.append(block_id)
        else:
            self.renew(self.q, block_id)
        self.on_top(self.keys[block_id])
        self.settle()

    def touch(self, block_id: BlockId) -> None:
        self.renew(self.hot if block_id in self.hot else self.q, block_id)
        if self.keys[block_id] in self.s:
            self.on_top(self.keys[block_id])
            self.settle()

    def leave(self, block_id: BlockId) -> None:
        self.anything_left = True
        was_hot = block_id in self.hot
        self.take_out(self.hot if was_hot else self.q, block_id)
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
        self.parent: dict[BlockId, BlockId] = {}
        self.uses: dict[BlockId, int] = {}
        self.worth: dict[BlockId, float] = {}
        self.by_last_use: list[BlockId] = []
        self.age = 0.0

    def arrive(self, block_id: BlockId, key: BlockHash, parent: BlockId, cost: float) -> None:
        self.cost[block_id], self.parent[block_id] = cost, parent
        self.uses[block_id] = 0
        self.by_last_use.append(block_id)
        self.hit(block_id)

    def leave(self, block_id: BlockId) -> None:
        del self.parent[block_id]
        self.by_last_use.remove(block_id)

    def hit(self, block_id: BlockId) -> None:
        self.uses[block_id] += 1
        self.touch(block_id)

    def touch(self, block_id: BlockId) -> None:
        self.worth[block_id] = self.age + self.uses[block_id] * self.cost[block_id]
        self.by_last_use.remove(block_id)
        self.by_last_use.append(block_id)

    def choose(self, refused: Set[BlockId]) -> BlockId:
        parents = set(self.parent.values())
        leaves = sorted((b for b in self.by_last_use if b not in parents), key=lambda b: self.worth[b])
        inner = [b for b in self.keys if b in parents]
        block_id = next(b for b in leaves + inner if b not in refused)
        self.age = max(self.age, self.worth[block_id])
        return block_id


NAIVE: Final[dict[str, Callable[[int], NaivePolicy]]] = {
    "arc": NaiveArc,
    "cost": NaiveCost,
    "fifo": NaiveFifo,
    "lfu": NaiveLfu,
    "lirs": NaiveLirs,
    "lru": NaiveLru,
    "s3fifo": NaiveS3Fifo,
    "sieve": NaiveSieve,
}
