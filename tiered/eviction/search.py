"""Searches for a victim: what one passed by, so that the next one need not pass it again.

A search stops at the first id that may leave. Looking alone changes nothing; only when that id leaves did the search
pass by what came before. A policy whose algorithm moves blocks as it goes (a hand, a promotion) moves them then.
Knows nothing of why the caller refused an id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from tiered.eviction.leaves import LeafHeap, Tree
from tiered.types import BlockId

T = TypeVar("T")


class Look(Generic[T]):
    """The newest look at the victims: what it saw, and where it stopped."""

    def __init__(self) -> None:
        self._seen: list[T] = []
        self.stopped_at: BlockId | None = None
        """None once the look has ended, or something was told since."""

    def begin(self) -> list[T]:
        """For the look to append what it comes by, its proposals included."""
        self._seen, self.stopped_at = [], None
        return self._seen

    def end(self, removed: BlockId) -> list[T] | None:
        """What was passed by if this removal is an eviction, None if it is not one."""
        stopped_at, self.stopped_at = self.stopped_at, None
        return self._seen[:-1] if stopped_at == removed else None


class Queue:
    """Ids, oldest first: those that a search has passed by, then those ahead of it.

    O(1) a step, but O(log n) for each leaf among the passed ones that a search looks at.
    """

    def __init__(self, tree: Tree) -> None:
        self.ahead: OrderedDict[BlockId, None] = OrderedDict()
        self.passed = LeafHeap(tree)
        self._n_passed = 0

    def __len__(self) -> int:
        return len(self.ahead) + len(self.passed)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self.ahead or block_id in self.passed

    def append(self, block_id: BlockId) -> None:
        self.ahead[block_id] = None

    def remove(self, block_id: BlockId) -> None:
        if block_id in self.ahead:
            del self.ahead[block_id]
        else:
            self.passed.remove(block_id)

    def renew(self, block_id: BlockId) -> None:
        """Make it the youngest."""
        if block_id in self.ahead:
            self.ahead.move_to_end(block_id)
        else:
            self.passed.remove(block_id)
            self.ahead[block_id] = None

    def oldest(self) -> BlockId:
        return next(iter(self.passed if len(self.passed) else self.ahead))

    def pass_by(self, block_id: BlockId) -> None:
        """The oldest ahead becomes the youngest passed; no matter if it is passed already."""
        if block_id in self.ahead:
            del self.ahead[block_id]
            self._n_passed += 1
            self.passed.rank(block_id, (0.0, self._n_passed))


class QueueSearch:
    """Looks through queues in order of preference: the leaves of each, oldest first, then all that are no leaves.

    Cost of an eviction: amortized O(1), and O(log n) for each leaf that is refused before it. Of a prompt that is in
    use that is one block, however long the prompt.
    """

    def __init__(self) -> None:
        self.tree = Tree()
        self.look: Look[tuple[Queue, BlockId]] = Look()

    def changed(self) -> None:
        """Something was told: the newest look no longer leads to an eviction."""
        self.look.stopped_at = None

    def over(self, *queues: Queue) -> Iterator[BlockId]:
        look, seen, inner = self.look, self.look.begin(), self.tree.inner
        for queue in queues:
            for block_id in queue.passed.leaves():
                seen.append((queue, block_id))
                look.stopped_at = block_id
                yield block_id
            for block_id in queue.ahead:
                seen.append((queue, block_id))
                if block_id not in inner:
                    look.stopped_at = block_id
                    yield block_id
        for queue, block_id in self.not_leaves(queues):
            seen.append((queue, block_id))
            look.stopped_at = block_id
            yield block_id
        look.stopped_at = None

    def not_leaves(self, queues: Iterable[Queue]) -> Iterator[tuple[Queue, BlockId]]:
        for queue in queues:
            for ids in (queue.passed, queue.ahead):
                yield from ((queue, block_id) for block_id in ids if block_id in self.tree.inner)

    def settle(self, removed: BlockId) -> None:
        """Before a removal: if it is an eviction, the search that led to it has passed by what it saw."""
        for queue, block_id in self.look.end(removed) or ():
            queue.pass_by(block_id)

    def forget(self, removed: BlockId, *queues: Queue) -> None:
        """After a removal: what the block hung on may be a leaf now."""
        parent = self.tree.remove(removed)
        if parent is not None:
            for queue in queues:
                queue.passed.offer(parent)
