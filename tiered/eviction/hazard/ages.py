"""The life of a segment in time: it runs, ends, lies idle longer and longer, and may be closed.

Owns the times at which segments grow older, and the names of requests under way. Time comes in with each call; what
changed is given back, to be filed anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered.eviction.hazard.classes import EDGES_S, FIRST_IDLE, OLDEST, RUNNING
from tiered.eviction.hazard.learning import Learning
from tiered.eviction.hazard.parameters import Parameters
from tiered.eviction.hazard.schedule import Schedule
from tiered.eviction.hazard.segment import Segment


class Ages:
    def __init__(self, parameters: Parameters, learning: Learning) -> None:
        self._running_s_max = parameters.running_s_max
        self._learning = learning
        self._timers = Schedule()
        self._running: dict[int, Segment] = {}
        """By the names of requests under way; one request may go by several."""

    @property
    def n_running(self) -> int:
        """Names of requests under way."""
        return len(self._running)

    def run(self, segment: Segment, name: int, now: float) -> None:
        """A request begins, or goes on under another name, perhaps after it had ended."""
        if not segment.names:
            self._learning.note_waiting(segment, now)
            segment.age_bin, segment.since = RUNNING, now
            self._timers.put(segment, now + self._running_s_max)
        segment.names.append(name)
        self._running[name] = segment

    def end(self, name: int, now: float, output_tokens: int | None) -> Segment | None:
        """Returns the request of this name, if it has ended now."""
        segment = self._running.pop(name, None)
        if segment is None:
            return None
        if output_tokens is not None:
            segment.output_tokens = output_tokens
        segment.names.remove(name)
        if segment.names:
            return None
        self._learning.rates.note_service(now - segment.began_at)
        self.lie_idle(segment, now)
        return segment

    def lie_idle(self, segment: Segment, now: float) -> None:
        """From now on, as if it had ended now."""
        self._learning.note_waiting(segment, now)
        segment.ended_at = segment.since = now
        segment.age_bin = FIRST_IDLE
        self._learning.classify(segment)
        self._set_timer(segment)

    def close(self, segment: Segment, now: float) -> None:
        self._learning.note_waiting(segment, now)
        self._learning.close(segment)
        if not segment.is_running:
            self._set_timer(segment)

    def leave(self, segment: Segment) -> None:
        """Nothing is left of it."""
        self._timers.discard(segment)
        for name in segment.names:
            del self._running[name]
        segment.names.clear()

    def advance(self, now: float) -> Iterator[Segment]:
        """Those that are older since the last time, in order of when they became so. Run it to its end."""
        while (due := self._timers.pop_due(now)) is not None:
            at, segment = due
            if segment.is_running:  # its end was lost
                for name in segment.names:
                    del self._running[name]
                segment.names.clear()
                self.lie_idle(segment, at)
            else:
                self._learning.note_waiting(segment, at)
                if self._closes_at(segment) <= at:
                    self._learning.close(segment)
                if segment.age_bin < OLDEST and self._older_at(segment) <= at:
                    segment.age_bin += 1
                self._set_timer(segment)
            yield segment

    def _older_at(self, segment: Segment) -> float:
        return segment.ended_at + EDGES_S[segment.age_bin]

    def _closes_at(self, segment: Segment) -> float:
        if segment.is_closed or segment.ttl_s is None:
            return float("inf")
        return segment.ended_at + segment.ttl_s

    def _set_timer(self, segment: Segment) -> None:
        due = self._closes_at(segment)
        if segment.age_bin < OLDEST:
            due = min(due, self._older_at(segment))
        if due < float("inf"):
            self._timers.put(segment, due)
        else:
            self._timers.discard(segment)
