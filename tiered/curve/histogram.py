"""histogram: how many accesses found their block at which place, and the curve that follows.

Places are in blocks, buckets are eighths of a doubling, counts fade. It knows nothing of how places are measured.

Sampling sees a hot block always or never, so what was counted differs from what was looked up, which is known
exactly. As in SHARDS (``stack.py`` names the paper) the difference is taken for accesses to hot blocks: too few are
put at the first place, too many are taken from the smallest places. A difference that chance alone would give is
spread over all places instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, inf, log2, sqrt
from typing import Final, TypeAlias

POINTS_MAX: Final = 32

_PER_OCTAVE: Final = 8
_GROUPS: Final = 28
"""Equal parts of the hits that are tried first; gaps between them take points too."""

_CHANCE: Final = 0.5
"""Of the deviation that blocks of equal use would have: on real traces the errors are least from here to 0."""

Points: TypeAlias = Sequence[tuple[int, float]]
"""(blocks, hits with room for so many), rising in both; straight lines between them, flat behind the last."""


class Histogram:
    __slots__ = ("_buckets", "_counts", "_per", "counted", "looked")

    def __init__(self) -> None:
        self.looked: float = 0
        """Accesses there were."""
        self.counted: float = 0
        """Accesses that the sampled ones stand for."""
        self._counts: dict[int, float] = {}
        self._buckets: list[int] = []
        """Of each place in a sample, as far as any was asked for, whose blocks stand for ``_per``."""
        self._per: float = 0

    def add(self, runs: Sequence[tuple[int, int]], *, n_sampled: int, per: float) -> None:
        """A lookup's sampled blocks, each of which stands for ``per``; runs: as ``SampledStack.touch`` has them."""
        self.counted += n_sampled * per
        if per != self._per:
            self._per, self._buckets = per, []
        counts, buckets = self._counts, self._buckets
        for place, n_run in runs:
            if (behind := place + n_run) > len(buckets):
                buckets.extend(_bucket(max(0, each - 1) * per + 1) for each in range(len(buckets), 2 * behind))
            first = buckets[place]
            if first == buckets[behind - 1]:
                counts[first] = counts.get(first, 0) + n_run * per
                continue
            for bucket in buckets[place:behind]:
                counts[bucket] = counts.get(bucket, 0) + per

    def fade(self, factor: float) -> None:
        """All that was counted so far weighs less by this factor."""
        self.looked *= factor
        self.counted *= factor
        self._counts = {bucket: left for bucket, count in self._counts.items() if (left := count * factor) > 1e-6}

    def points(self, *, n_sampled: int) -> Points:
        """At most POINTS_MAX of them; empty where nothing would be a hit at any size. n_sampled: distinct blocks."""
        buckets = self._corrected(n_sampled)
        total, parts = sum(count for _, count in buckets), _GROUPS
        while True:
            points = _cumulated(_grouped(buckets, total / parts))
            if len(points) <= POINTS_MAX:
                return points
            parts = parts * 3 // 4

    def _corrected(self, n_sampled: int) -> list[tuple[int, float]]:
        missing, by_chance = self.looked - self.counted, _CHANCE * self.looked / sqrt(max(1, n_sampled))
        spread = max(-by_chance, min(by_chance, missing))
        factor = 1 + spread / self.counted if self.counted else 1.0
        buckets = [(bucket, max(0.0, count * factor)) for bucket, count in sorted(self._counts.items())]
        missing -= spread
        if buckets and missing > 0:
            buckets.insert(0, (0, missing))
        while buckets and missing < 0:
            bucket, count = buckets[0]
            if count + missing > 0:
                buckets[0] = (bucket, count + missing)
                break
            missing += count
            del buckets[0]
        return buckets


def hits_at(points: Points, n_blocks: float) -> float:
    """What a curve says for room of any size."""
    above = bisect_right(points, (n_blocks, inf))
    if above == 0:
        return 0.0
    size, hits = points[above - 1]
    if above == len(points):
        return hits
    next_size, next_hits = points[above]
    return hits + (next_hits - hits) * (n_blocks - size) / (next_size - size)


def _bucket(place: float) -> int:
    return int(_PER_OCTAVE * log2(place))


def _grouped(buckets: Sequence[tuple[int, float]], hits_max: float) -> list[tuple[int, int, float]]:
    """(first bucket, one behind the last, hits): those that follow each other together, up to so many hits."""
    groups: list[tuple[int, int, float]] = []
    for bucket, count in buckets:
        if groups and groups[-1][2] + count <= hits_max:
            first, _, hits = groups[-1]
            groups[-1] = (first, bucket + 1, hits + count)
        else:
            groups.append((bucket, bucket + 1, count))
    return groups


def _cumulated(groups: Sequence[tuple[int, int, float]]) -> list[tuple[int, float]]:
    points: list[tuple[int, float]] = []
    hits = 0.0
    for first, behind, count in groups:
        start, end = _last_before(first), _last_before(behind)
        if not points or points[-1][0] < start:
            points.append((start, hits))
        hits += count
        if end == points[-1][0] and len(points) > 1:
            points[-1] = (end, hits)
        else:
            points.append((max(end, start), hits))
    return points


def _last_before(bucket: int) -> int:
    """The last whole place before the bucket's."""
    return ceil(2 ** (bucket / _PER_OCTAVE)) - 1
