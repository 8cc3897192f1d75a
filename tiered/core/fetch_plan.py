"""What was decided about one lookup's blocks below the hot tier, and the totals of such decisions."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from tiered.estimate.sources import SourceKey


class FetchDecision(enum.StrEnum):
    """Of what peers and Redis have of a prompt."""

    FETCH_ALL = "fetch_all"
    FETCH_PART = "fetch_part"
    COMPUTE = "compute"
    """Nothing is fetched: that would take longer."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The decision with its numbers.

    fetched:    how many blocks from which source, in the order of the prompt.
    ttft_s:     expected time to first token with it; computed_s: without fetching anything. Both from the match on.
    fetch_s:    the part of ttft_s that is fetching.
    patience_s: how long the request may wait for it.
    """

    decision: FetchDecision
    fetched: tuple[tuple[SourceKey, int], ...]
    ttft_s: float
    computed_s: float
    fetch_s: float
    patience_s: float

    @property
    def n_blocks(self) -> int:
        return sum(n_blocks for _, n_blocks in self.fetched)


@dataclass(slots=True)
class PlanCounters:
    """Grow for the life of the worker. expected_s and measured_s: of the loads that followed a plan, how long they
    were to take and took; out_of_patience: how many of them were ended before they were done. probes: fetches made
    only to see how fast a source is."""

    decisions: dict[FetchDecision, int] = field(default_factory=lambda: dict.fromkeys(FetchDecision, 0))
    expected_s: float = 0.0
    measured_s: float = 0.0
    out_of_patience: int = 0
    probes: int = 0

    def copy(self) -> PlanCounters:
        return replace(self, decisions=dict(self.decisions))
