"""What is known of every source of blocks: how fast it is, what it is asked for now, and whether it still answers.

Told when a fetch is asked for and when it ends; reads no clock. Fetches of one source that run at the same time are
measured together, as one burst: the bytes of all of them over the time in which any ran. So a rate is that of the
source, however many movers share it.

A source that is silent is slow, long before its fetches end: while something is outstanding, its rate is no better
than the silence allows, and far worse once a request has given up on it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NewType

from tiered.estimate.rate import JITTER_S, FetchRate
from tiered.types import SourceRate, Ticket

SourceKey = NewType("SourceKey", str)
"""A peer's node, whatever life of it; or Redis."""

REDIS: Final = SourceKey("")

BURST_JOBS_MAX: Final = 8
"""Of a source that is never idle, this many fetches make one measurement."""

NOTHING_S: Final = 0.25
"""What is not there is said at once. A fetch that took longer and still lacks blocks was cut short."""

DOUBT: Final = 100.0
"""A source that let a request down is taken for this many times slower until it brings something, or its fetches end:
the next request must not find out for itself, and it is not for long."""


@dataclass(slots=True)
class _Source:
    """outstanding: bytes of each fetch, and when it was asked for. burst: when its fetches that have ended ran."""

    rate: FetchRate = field(default_factory=FetchRate)
    outstanding: dict[Ticket, tuple[int, float]] = field(default_factory=dict)
    burst: list[tuple[float, float]] = field(default_factory=list)
    burst_bytes: int = 0
    burst_lacks_blocks: bool = False
    heard_at: float = -math.inf
    tried_at: float = -math.inf
    doubted: bool = False

    @property
    def outstanding_bytes(self) -> int:
        return sum(n_bytes for n_bytes, _ in self.outstanding.values())

    def silent_s(self, now: float) -> float:
        """For how long it has owed us something and brought nothing."""
        if not self.outstanding:
            return 0.0
        return max(0.0, now - max(self.heard_at, min(at for _, at in self.outstanding.values())))


@dataclass(slots=True)
class Sources:
    """block_bytes: what the least fetch brings."""

    block_bytes: int
    _sources: dict[SourceKey, _Source] = field(default_factory=dict)
    _keys: dict[Ticket, SourceKey] = field(default_factory=dict)
    """Of the fetches outstanding."""

    def asked(self, ticket: Ticket, key: SourceKey, *, n_bytes: int, now: float) -> None:
        source = self._sources.setdefault(key, _Source())
        source.outstanding[ticket] = n_bytes, now
        self._keys[ticket] = key

    def finished(self, ticket: Ticket, *, n_bytes: int, lacks_blocks: bool, took_s: float, now: float) -> None:
        """A fetch ended with n_bytes that verified. took_s: 0 where no mover ran it, so that it says nothing."""
        key = self._keys.pop(ticket, None)
        if key is None:
            return
        source = self._sources[key]
        del source.outstanding[ticket]
        if 0 < took_s < math.inf:
            source.heard_at = now
            source.burst.append((now - took_s, now))
            source.burst_bytes += n_bytes
            source.burst_lacks_blocks |= lacks_blocks
            source.doubted = source.doubted and not n_bytes
        if not source.outstanding or len(source.burst) >= BURST_JOBS_MAX:
            self._measure(source, now)

    def doubt(self, key: SourceKey) -> None:
        """A request waited for it in vain, for as long as it could be expected to take."""
        source = self._sources.get(key)
        if source is not None and source.outstanding:
            source.doubted = True

    def rate(self, key: SourceKey, *, now: float) -> SourceRate:
        """As measured, or worse where it is silent; ``bytes_per_s`` 0 while nothing is known of it."""
        source = self._sources.get(key)
        return SourceRate() if source is None else _rate(source, now)

    def busy_s(self, key: SourceKey, *, now: float, but_bytes: int = 0) -> float:
        """How long it has to work for what is outstanding, but_bytes of that left out."""
        source = self._sources.get(key)
        if source is None or not source.outstanding:
            return 0.0
        bytes_per_s = _rate(source, now).bytes_per_s
        return max(0, source.outstanding_bytes - but_bytes) / bytes_per_s if bytes_per_s else 0.0

    def is_due(self, key: SourceKey, *, now: float, after_s: float) -> bool:
        """Whether what is known of it is older than that, with nothing outstanding that would bring more."""
        source = self._sources.get(key)
        return source is None or (not source.outstanding and now - source.tried_at > after_s)

    def waiting_s(self, *, now: float) -> float:
        """Until the last of them would be done."""
        return max((self.busy_s(key, now=now) for key in self._sources), default=0.0)

    def peers_rate(self, *, now: float) -> SourceRate:
        """Of any peer: the mean over peers, each as much as was fetched from it of late."""
        return _blend((s.rate.n_bytes, _rate(s, now)) for key, s in self._sources.items() if key != REDIS)

    def keep(self, peers: Collection[str]) -> None:
        """Forget peers that are not among these and owe nothing."""
        for key in [k for k, s in self._sources.items() if k != REDIS and k not in peers and not s.outstanding]:
            del self._sources[key]

    def __len__(self) -> int:
        return len(self._sources)

    def _measure(self, source: _Source, now: float) -> None:
        """One measurement of the burst, where it says anything."""
        if not source.outstanding:
            source.doubted = False
        if not source.burst:
            return
        took_s, n_bytes = _covered_s(source.burst), source.burst_bytes
        cut_short = source.burst_lacks_blocks and took_s > NOTHING_S
        source.burst, source.burst_bytes, source.burst_lacks_blocks = [], 0, False
        source.tried_at = now
        if n_bytes > 0:
            source.rate.note(n_bytes, took_s, cut_short=cut_short)
        elif cut_short and took_s > source.rate.expected_s(self.block_bytes):
            source.rate.note(self.block_bytes, took_s, cut_short=True)  # not even one block in all that time


def _rate(source: _Source, now: float) -> SourceRate:
    known, silent_s = source.rate.rate, source.silent_s(now)
    slower = DOUBT if source.doubted else 1.0
    if not source.rate.known:
        if silent_s <= JITTER_S:
            return known
        return SourceRate(0.0, source.outstanding_bytes / (silent_s * slower))
    if source.outstanding:
        expected_s = source.rate.expected_s(source.outstanding_bytes)
        if silent_s > expected_s + JITTER_S:
            slower *= silent_s / expected_s
    return SourceRate(known.latency_s * slower, known.bytes_per_s / slower)


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """How much time lies in any of the spans."""
    covered, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


def _blend(rates: Iterable[tuple[float, SourceRate]]) -> SourceRate:
    known = [(weight, rate) for weight, rate in rates if rate.bytes_per_s > 0 and weight > 0]
    total = sum(weight for weight, _ in known)
    if not known:
        return SourceRate()
    return SourceRate(
        sum(weight * rate.latency_s for weight, rate in known) / total,
        sum(weight * rate.bytes_per_s for weight, rate in known) / total,
    )
