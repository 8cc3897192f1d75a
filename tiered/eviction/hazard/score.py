"""Learning: from what is seen of a request, how many times as often as the average its blocks return.

Proportional hazards, one weight for each feature that is there: rate = exp(sum of weights). Each stretch of waiting
and each return is one step of AdaGrad on the Poisson likelihood (J. Duchi, E. Hazan, Y. Singer: "Adaptive Subgradient
Methods for Online Learning and Stochastic Optimization", JMLR 2011). Owns the weights; sees one request at a time.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Final

from tiered.eviction.hazard.segment import Segment
from tiered.types import Continues

LEARNING_RATE: Final = 0.05
SQUARES_AT_FIRST: Final = 0.01
ERROR_MAX: Final = 2.0
LOG_RATE_MIN: Final = -8.0
LOG_RATE_MAX: Final = 4.0
WAIT_MIN: Final = 1e-6
"""Expected returns of a stretch of waiting below which it is not worth a step."""
SIZE_MIN, SIZE_MAX = 0.1, 4.0
"""Requests that bring more new blocks than the mean weigh more in a step, within these bounds."""

N_LABELS: Final = 1_024
"""Labels are told apart by so many numbers each, since a caller may invent them without end."""
LOG_MAX: Final = 40
UNKNOWN: Final = -9

Feature = tuple[int, ...]


def rounded_log(value: float, steps: float = 1.0) -> int:
    """Steps of equal ratio: so many to a doubling. -1 for nothing."""
    return -1 if value <= 0 else min(LOG_MAX, math.floor(steps * math.log2(value)))


def turn_bucket(turn: int) -> int:
    """1, 2, 3, 4-5, 6-8, 9-16, 17-64, more."""
    if turn <= 3:
        return turn
    return next((bucket for bucket, last in ((4, 5), (5, 8), (6, 16), (7, 64)) if turn <= last), 8)


def features_of(segment: Segment) -> list[Feature]:
    """What is seen of it, in steps; its answer's length only once that is known."""
    turn = turn_bucket(segment.turn)
    length = rounded_log(segment.length, 1.5)
    output = UNKNOWN if segment.output_tokens is None else rounded_log(segment.output_tokens + 1)
    gap = rounded_log(segment.gap_s + 1) if segment.turn > 1 else UNKNOWN
    mean_gap = rounded_log(segment.mean_gap_s + 1) if segment.turn > 1 else UNKNOWN
    features: list[Feature] = [
        (0,),
        (1, turn),
        (2, length),
        (3, output),
        (4, gap),
        (5, mean_gap),
        (6, rounded_log(segment.n_new + 1)),
        (7, min(turn, 2), length, output),
        (8, turn, gap),
        (9, turn, output),
    ]
    features.extend((20 + i, zlib.crc32(label.encode()) % N_LABELS) for i, label in enumerate(segment.labels))
    if segment.continues is not Continues.UNKNOWN:
        features.append((10, int(segment.continues is Continues.YES)))
    return features


class Score:
    def __init__(self) -> None:
        self._numbers: dict[Feature, int] = {}
        self._weights: list[float] = []
        self._squares: list[float] = []

    def features(self, segment: Segment) -> list[int]:
        """The features of a request by their numbers here."""
        return [self._number(feature) for feature in features_of(segment)]

    def rate(self, features: Sequence[int]) -> float:
        weights = self._weights
        log_rate = sum([weights[feature] for feature in features])
        return math.exp(min(LOG_RATE_MAX, max(LOG_RATE_MIN, log_rate)))

    def learn(self, features: Sequence[int], *, expected: float, returned: bool, size: float) -> None:
        """One step. expected: returns that the average request would have shown in this stretch of waiting.

        size: the request's new blocks as a multiple of the mean.
        """
        if not returned and expected < WAIT_MIN:
            return
        error = max(-ERROR_MAX, min(ERROR_MAX, self.rate(features) * expected - returned))
        error *= min(SIZE_MAX, max(SIZE_MIN, size))
        weights, squares, root = self._weights, self._squares, math.sqrt
        square, step = error * error, LEARNING_RATE * error
        for feature in features:
            squares[feature] = seen = squares[feature] + square
            weights[feature] -= step / root(seen + 1.0)

    def _number(self, feature: Feature) -> int:
        number = self._numbers.get(feature)
        if number is None:
            number = self._numbers[feature] = len(self._weights)
            self._weights.append(0.0)
            self._squares.append(SQUARES_AT_FIRST)
        return number
