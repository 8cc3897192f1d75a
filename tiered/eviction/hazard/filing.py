"""Where to find the next victim: segments filed by the class of their deepest cached block and their age.

All segments of one such group have one index, so the best victim is at the end of the first segment of the group with
the lowest. Owns the groups and their order, and beside them the order of last use, for the times when LRU decides.
Knows nothing of how indices come about, nor which segment may be filed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from tiered.eviction.hazard.classes import N_BINS
from tiered.eviction.hazard.schedule import Schedule
from tiered.eviction.hazard.segment import Segment


class Filing:
    """Cost: O(log groups) to file, O(1) for the first segment in either order."""

    def __init__(self, indices: Sequence[Sequence[float]]) -> None:
        self._groups: dict[int, OrderedDict[int, Segment]] = {}
        """By rank. The entry is a segment by its number, in the order in which they were filed."""
        self._group_of: dict[int, int] = {}
        """Group of each filed segment; a group is ``class * N_BINS + age_bin``."""
        self._occupied: list[int] = []
        """Ranks of groups that hold something, lowest first."""
        self._by_use = Schedule()
        self._rank_of: list[int] = []
        self._group_at: list[int] = []
        """The rank of each group, and the group of each rank."""
        self._rank(indices)

    def rank_anew(self, indices: Sequence[Sequence[float]]) -> None:
        """The index of each class and age changed; the order within a group stays."""
        groups = {self._group_at[rank]: segments for rank, segments in self._groups.items()}
        self._rank(indices)
        self._groups = {self._rank_of[group]: segments for group, segments in groups.items()}
        self._occupied = sorted(self._groups)

    def file(self, segment: Segment, block_class: int) -> None:
        """Under this class and its age. Where it is filed already it keeps its place."""
        group = block_class * N_BINS + segment.age_bin
        before = self._group_of.get(segment.number)
        if group == before:
            return
        if before is None:
            self._by_use.put(segment, segment.used_at)
        else:
            self._leave_group(segment, before)
        self._group_of[segment.number] = group
        rank = self._rank_of[group]
        segments = self._groups.get(rank)
        if segments is None:
            segments = self._groups[rank] = OrderedDict()
            insort(self._occupied, rank)
        segments[segment.number] = segment

    def take_out(self, segment: Segment) -> None:
        """Nothing of it may leave now; no matter if it is not filed."""
        group = self._group_of.pop(segment.number, None)
        if group is not None:
            self._leave_group(segment, group)
            self._by_use.discard(segment)

    def by_index(self) -> Iterator[Segment]:
        for rank in self._occupied:
            yield from self._groups[rank].values()

    def by_use(self) -> Iterator[Segment]:
        return self._by_use.in_order()

    def _leave_group(self, segment: Segment, group: int) -> None:
        rank = self._rank_of[group]
        segments = self._groups[rank]
        del segments[segment.number]
        if not segments:
            del self._groups[rank]
            del self._occupied[bisect_left(self._occupied, rank)]

    def _rank(self, indices: Sequence[Sequence[float]]) -> None:
        flat = [index for by_age in indices for index in by_age]
        self._group_at = sorted(range(len(flat)), key=flat.__getitem__)
        self._rank_of = [0] * len(flat)
        for rank, group in enumerate(self._group_at):
            self._rank_of[group] = rank
