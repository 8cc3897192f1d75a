"""Searches for a victim: what one passed over, and how the next one avoids meeting it all again.

A search stops at the first id that may leave. What it refused on the way (pinned, or with resident children) mostly
stays refused for long, such as the ten thousand blocks of a prompt that is still being saved. So after an eviction
its refusals are set aside; further searches begin behind them, until as many evictions have been made as pay for
meeting them again. Knows nothing of why an id was refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

from tiered.types import BlockId

RETRIES_PER_EVICTION: Final = 8
"""Ids set aside that an eviction pays for meeting again: fewer than these are never skipped, so that the order is
exact where little is refused, and the cost of an eviction does not grow where much is."""

T = TypeVar("T")


class Look(Generic[T]):
    """One look at the victims: what it saw, and where it stopped. Looking alone changes nothing."""

    def __init__(self) -> None:
        self._seen: list[T] = []
        self.stopped_at: BlockId | None = None
        """None once the look has ended, or something was told since."""

    def begin(self) -> list[T]:
        """For the look to append what it sees, its proposals included."""
        self._seen, self.stopped_at = [], None
        return self._seen

    def end(self, removed: BlockId) -> list[T] | None:
        """What was passed over if this removal is an eviction, None if it is not one."""
        stopped_at, self.stopped_at = self.stopped_at, None
        return self._seen[:-1] if stopped_at == removed else None


class Queue:
    """Ids, oldest first: those set aside, then those ahead. O(1) a step."""

    __slots__ = ("ahead", "aside")

    def __init__(self) -> None:
        self.ahead: OrderedDict[BlockId, None] = OrderedDict()
        self.aside: OrderedDict[BlockId, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.ahead) + len(self.aside)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self.ahead or block_id in self.aside

    def append(self, block_id: BlockId) -> None:
        self.ahead[block_id] = None

    def remove(self, block_id: BlockId) -> None:
        if block_id in self.ahead:
            del self.ahead[block_id]
        else:
            del self.aside[block_id]

    def renew(self, block_id: BlockId) -> None:
        """Make it the youngest."""
        if block_id in self.ahead:
            self.ahead.move_to_end(block_id)
        else:
            del self.aside[block_id]
            self.ahead[block_id] = None

    def oldest(self) -> BlockId:
        return next(iter(self.aside or self.ahead))

    def set_aside(self, block_id: BlockId) -> None:
        """The oldest ahead becomes the youngest aside."""
        del self.ahead[block_id]
        self.aside[block_id] = None

    def take_back(self) -> None:
        for block_id in reversed(self.aside):
            self.ahead[block_id] = None
            self.ahead.move_to_end(block_id, last=False)
        self.aside.clear()


class QueueSearch:
    """Looks through queues in order of preference. Amortized O(1) an eviction, plus one for each id newly refused."""

    def __init__(self) -> None:
        self.look: Look[tuple[Queue, BlockId]] = Look()
        self._holding: dict[Queue, None] = {}
        self._n_aside = self._n_evicted = 0

    def changed(self) -> None:
        """Something was told: the newest look no longer leads to an eviction."""
        self.look.stopped_at = None

    def over(self, queues: Iterable[Queue]) -> Iterator[BlockId]:
        """Propose every id of the queues.

        What is aside comes last, and there the youngest first: of a prompt that came bit by bit those are the
        leaves, and as each leaves, the next one may.
        """
        look, seen, holding = self.look, self.look.begin(), []
        for queue in queues:
            for block_id in queue.ahead:
                seen.append((queue, block_id))
                look.stopped_at = block_id
                yield block_id
            if queue.aside:
                holding.append(queue)
        for queue in holding:
            for block_id in reversed(queue.aside):
                seen.append((queue, block_id))
                look.stopped_at = block_id
                yield block_id
        look.stopped_at = None

    def settle(self, removed: BlockId) -> None:
        """Before a removal: if it is an eviction, set aside what was refused for it."""
        refused = self.look.end(removed)
        if refused is None:
            return
        for queue, block_id in refused:
            if block_id in queue.ahead:
                self.set_aside(queue, block_id)
        self.count_eviction()

    def set_aside(self, queue: Queue, block_id: BlockId) -> None:
        queue.set_aside(block_id)
        self._holding[queue] = None
        self._n_aside += 1

    def count_eviction(self) -> None:
        """Take back what is aside once enough evictions have been made for that."""
        self._n_evicted += 1
        if self._n_evicted * RETRIES_PER_EVICTION >= self._n_aside:
            for queue in self._holding:
                queue.take_back()
            self._holding.clear()
            self._n_aside = self._n_evicted = 0
