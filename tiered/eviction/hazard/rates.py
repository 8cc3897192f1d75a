"""What was seen: returns and waiting, by class and age, and the return rates that follow from them.

Counted of every block that is remembered, cached or not, so that what the policy keeps does not decide what it sees.
Knows nothing of requests: who counts what is said in ``policy.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tiered.eviction.hazard.classes import (
    EDGES_S,
    N_BINS,
    N_CLASSES,
    N_SCORED,
    N_SCORES,
    RUNNING,
    SAID,
    expected_ratio,
)
from tiered.eviction.hazard.index import gittins
from tiered.eviction.hazard.parameters import Parameters

RATE_MIN: Final = 1e-9
BLOCKS_AT_FIRST: Final = 10.0
SERVICE_AT_FIRST_S: Final = 5.0
SLOW_MEAN: Final = 0.002
SERVICE_MEAN: Final = 0.01
"""How far one request moves the running means of new blocks and of service times."""


def _expected_rate(age_bin: int) -> float:
    """Returns a second before anything is known: the longer it lies idle the fewer, and never hopelessly few."""
    idle_s = 5.0 if age_bin == RUNNING else EDGES_S[age_bin - 1]
    return 0.3 / (idle_s + 30.0)


class Rates:
    """returned[c][a]: blocks of class c that returned at age a. waited[c][a]: blocks times seconds."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.returned = [[0.0] * N_BINS for _ in range(N_CLASSES)]
        self.waited = [[0.0] * N_BINS for _ in range(N_CLASSES)]
        self.mean_new_blocks = BLOCKS_AT_FIRST
        self.mean_service_s = SERVICE_AT_FIRST_S
        self.curves: list[list[float]] = []
        """Returns a second by age, of all scored classes of each word of the caller."""
        self.indices: list[list[float]] = []
        self.refresh()

    def note_request(self, n_new: int) -> None:
        self.mean_new_blocks = max(1.0, self.mean_new_blocks + SLOW_MEAN * (n_new - self.mean_new_blocks))

    def note_service(self, seconds: float) -> None:
        self.mean_service_s += SERVICE_MEAN * (seconds - self.mean_service_s)

    def decay(self) -> None:
        """As much as is due from one refresh to the next."""
        factor = 0.5 ** (self._parameters.refresh_requests / self._parameters.half_life_requests)
        for rows in (self.returned, self.waited):
            for row in rows:
                row[:] = [count * factor for count in row]

    def refresh(self) -> None:
        """Rates and indices from the counts.

        All scored blocks together give a curve over the ages; each word of the caller bends it, since who is said to
        go on returns at other times than who is not; each class starts as the curve of its word, higher or lower.
        """
        made_up = self._parameters.pseudo_requests * self.mean_new_blocks
        all_scored = range(N_SCORED)
        pooled = self._curve(all_scored, [_expected_rate(age_bin) for age_bin in range(N_BINS)], made_up)
        words = [range(word * N_SCORES, (word + 1) * N_SCORES) for word in SAID.values()]
        was_said = [any(any(self.waited[c]) for c in classes) for classes in words]
        self.curves, self.indices = [], []
        for classes, said in zip(words, was_said, strict=True):
            curve = self._curve(classes, pooled, made_up) if sum(was_said) > 1 else pooled
            self.curves.append(curve)
            if said or not self.indices:
                self.indices.extend(self._index(c, curve, made_up) for c in classes)
            else:  # never said: until then it means no more than silence
                self.indices.extend(self.indices[:N_SCORES])
        self.indices.extend(self._index(c, pooled, made_up) for c in range(N_SCORED, N_CLASSES))

    def _curve(self, classes: range, prior: Sequence[float], made_up: float) -> list[float]:
        """Returns a second by age of all these classes together."""
        curve = []
        for age_bin in range(N_BINS):
            returned = sum([self.returned[c][age_bin] for c in classes])
            waited = sum([self.waited[c][age_bin] for c in classes])
            curve.append((returned + made_up) / (waited + made_up / prior[age_bin]))
        return curve

    def _index(self, block_class: int, curve: Sequence[float], made_up: float) -> list[float]:
        returned, waited = self.returned[block_class], self.waited[block_class]
        expected = sum(map(float.__mul__, waited, curve))
        ratio = (sum(returned) + made_up * expected_ratio(block_class)) / (expected + made_up)
        hazards = [
            max(RATE_MIN, (returned[a] + made_up) / (waited[a] + made_up / (curve[a] * ratio))) for a in range(N_BINS)
        ]
        return gittins(hazards, service_s=self.mean_service_s)
