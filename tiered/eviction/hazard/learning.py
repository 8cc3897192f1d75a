"""What one segment's waiting and returning teach, and the class that follows for its blocks.

Joins the two things that are learned: a score for each request, and rates for each class. Changes the segment's
``since``, ``features`` and ``runs``; knows nothing of where it is filed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tiered.eviction.hazard.classes import (
    ABANDONED,
    CLOSED,
    LAST,
    N_SCORED,
    SAID,
    UNNAMED,
    score_class,
    shared_class,
)
from tiered.eviction.hazard.parameters import Parameters
from tiered.eviction.hazard.rates import Rates
from tiered.eviction.hazard.score import Score
from tiered.eviction.hazard.segment import Block, Run, Segment


class Learning:
    def __init__(self, parameters: Parameters) -> None:
        self.rates = Rates(parameters)
        self._score = Score()

    def note_waiting(self, segment: Segment, now: float) -> None:
        """It has owned what it owns, at this age, until now."""
        seconds = now - segment.since
        if seconds <= 0.0:
            return
        self._step(segment, seconds, returned=False)
        start, age_bin, waited = segment.start, segment.age_bin, self.rates.waited
        for first, stop, block_class in segment.runs:
            if stop > start:
                waited[block_class][age_bin] += (stop - (first if first > start else start)) * seconds
        segment.since = now

    def note_return(self, segment: Segment, up_to: int) -> None:
        """Another request uses its first blocks, at this age. Comes before it yields them."""
        start, age_bin, returned = segment.start, segment.age_bin, self.rates.returned
        for first, stop, block_class in segment.runs:
            n_blocks = min(stop, up_to) - max(first, start)
            if n_blocks > 0:
                returned[block_class][age_bin] += n_blocks

    def note_next_turn(self, segment: Segment, up_to: int) -> None:
        """That request is the next turn of its conversation: what it does not use is abandoned."""
        self._step(segment, 0.0, returned=True)
        segment.is_settled = True
        segment.runs = [
            (first, stop, ABANDONED if stop > up_to and block_class < N_SCORED else block_class)
            for first, stop, block_class in segment.runs
        ]

    def classify(self, segment: Segment) -> None:
        """From all that is known of it now."""
        if segment.unnamed:
            segment.runs = [(0, 1, UNNAMED)]
            return
        segment.features = self._score.features(segment)
        scored = score_class(self._score.rate(segment.features), segment.continues)
        segment.runs = [
            (first, stop, scored if block_class < N_SCORED else block_class)
            for first, stop, block_class in segment.runs
        ]
        if segment.is_closed:
            self.close(segment)

    def close(self, segment: Segment) -> None:
        """It is said to be over: all but the beginnings that others share."""
        segment.is_closed = segment.is_settled = True
        segment.runs = [
            (first, stop, CLOSED if block_class in (ABANDONED, LAST) or block_class < N_SCORED else block_class)
            for first, stop, block_class in segment.runs
        ]

    def _step(self, segment: Segment, seconds: float, *, returned: bool) -> None:
        if segment.is_settled or segment.is_running:
            return
        n_own = segment.length - max(segment.start, segment.first_unshared)
        self._score.learn(
            segment.features,
            expected=self.rates.curves[SAID[segment.continues]][segment.age_bin] * seconds,
            returned=returned,
            size=n_own / self.rates.mean_new_blocks,
        )


def runs_of(blocks: Sequence[Block], first: int) -> list[Run]:
    """Blocks of a path from that index on, by what is known of them without a score: shared beginning, rest, last."""
    n_shared = next((i for i, block in enumerate(blocks) if block.n_starts < 2), len(blocks))
    runs: list[Run] = []
    begin, end = first, first + len(blocks)
    for block_class, group in groupby(blocks[:n_shared], key=lambda block: shared_class(block.n_starts)):
        stop = begin + sum(1 for _ in group)
        runs.append((begin, stop, block_class))
        begin = stop
    if begin < end - 1:
        runs.append((begin, end - 1, 0))
    if begin < end:
        runs.append((end - 1, end, LAST))
    return runs
