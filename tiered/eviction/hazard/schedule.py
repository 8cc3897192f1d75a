"""Segments by a number each, lowest first; the number may change. Used for times due and for recency.

A heap whose outdated entries stay until they come up, or until they are too many. Knows nothing of what the numbers
mean.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, TypeAlias

from tiered.eviction.hazard.segment import Segment

SPARE: Final = 64
"""Outdated entries that a small heap may hold beyond its valid ones, so that it is not rebuilt at every step."""

Entry: TypeAlias = tuple[float, int, int, Segment]
"""The number by which it is ordered, the segment's own, and a number used once, which says whether it is valid."""


class Schedule:
    """Cost: O(log n) a step; ``discard`` O(1)."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._looked_at: list[Entry] = []
        """Taken out of the heap by the newest look."""
        self._valid: dict[int, int] = {}
        self._n_puts = 0

    def __len__(self) -> int:
        return len(self._valid)

    @property
    def n_entries(self) -> int:
        """With those that are outdated."""
        return len(self._heap) + len(self._looked_at)

    def put(self, segment: Segment, due: float) -> None:
        """Enter it, or change its number."""
        self._n_puts += 1
        self._valid[segment.number] = self._n_puts
        heapq.heappush(self._heap, (due, segment.number, self._n_puts, segment))
        if self.n_entries > 2 * len(self._valid) + SPARE:
            self._return_looked_at()
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def discard(self, segment: Segment) -> None:
        self._valid.pop(segment.number, None)

    def pop_due(self, until: float) -> tuple[float, Segment] | None:
        """Take out the first that is due by then."""
        self._return_looked_at()
        while self._heap and self._heap[0][0] <= until:
            entry = heapq.heappop(self._heap)
            if self._is_valid(entry):
                del self._valid[entry[1]]
                return entry[0], entry[3]
        return None

    def in_order(self) -> Iterator[Segment]:
        """All of them. One look at a time, and none across a change; it costs O(log n) a segment looked at."""
        self._return_looked_at()
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._is_valid(entry):
                self._looked_at.append(entry)
                yield entry[3]

    def _return_looked_at(self) -> None:
        looked_at, self._looked_at = self._looked_at, []
        for entry in looked_at:
            heapq.heappush(self._heap, entry)

    def _is_valid(self, entry: Entry) -> bool:
        return self._valid.get(entry[1]) == entry[2]
