"""How long things took, as counts per bucket, kept where they happen.

Owns the buckets. It has no lock: each instance is written by one thread, or under a lock that its owner holds anyway.
A note costs half a microsecond.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BUCKETS_S: Final = (
    50e-6,
    100e-6,
    250e-6,
    500e-6,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper bounds: from a hot match of a short prompt to longer than any deadline here; one more bucket has the rest."""


class Timing:
    """Grows for the life of its owner."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        """Per bucket, not cumulative."""
        self.sum_s = 0.0

    def note(self, took_s: float) -> None:
        self.counts[bisect_left(BUCKETS_S, took_s)] += 1
        self.sum_s += took_s

    @property
    def n(self) -> int:
        return sum(self.counts)

    def copy(self) -> Timing:
        """For who looks later, or from another thread."""
        twin = Timing()
        twin.counts, twin.sum_s = self.counts.copy(), self.sum_s
        return twin
