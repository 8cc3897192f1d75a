"""How fast one source is: latency and bandwidth, learned from what its fetches brought and how long they took.

Knows neither clocks nor names. A line through the last few measurements, each worth less than the one after it; what
is far off the line is not mixed into it but moves it.

- Far too slow, once: may be anybody's bad luck. It is remembered and otherwise ignored; a second one in a row is
  believed. One that was cut short is believed at once, since nobody waits five seconds by bad luck.
- Far too fast, once: is believed. Bytes that arrived so fast could arrive so fast.

Moving the line means that all remembered times are taken for so many times longer or shorter, so that the shares of
latency and bandwidth stay what they were until new measurements tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiered.types import SourceRate

KEEP: Final = 0.7
"""Weight of the measurements before against a new one: the last three or four count."""

FAR: Final = 4.0
"""Further off than this many times is another regime, not noise."""

JITTER_S: Final = 0.01
"""Nothing is far off that is within this: a busy processor alone can cost it."""

TOOK_S_MAX: Final = 60.0
"""Longer than any job may run."""

_SPREAD: Final = 0.1
"""Sizes that differ by less, relative to their mean, say nothing of latency against bandwidth."""

_LEAST: Final = 0.1
"""At least this part of the mean time is due to bytes: no line is flat, however measurements scatter."""


@dataclass(slots=True)
class FetchRate:
    """A fetch of n bytes is expected to take ``latency_s + n * s_per_byte``; s_per_byte 0: nothing is known."""

    latency_s: float = 0.0
    s_per_byte: float = 0.0
    n_bytes: float = 0.0
    """Of the last measurements, weighted: how much this estimate rests on."""
    _n: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    _late: float = 0.0
    """How many times too long the last measurement took, where that was not believed."""

    @property
    def known(self) -> bool:
        return self.s_per_byte > 0

    @property
    def rate(self) -> SourceRate:
        return SourceRate(self.latency_s, 1 / self.s_per_byte) if self.known else SourceRate()

    def expected_s(self, n_bytes: int) -> float:
        return self.latency_s + n_bytes * self.s_per_byte

    def note(self, n_bytes: int, took_s: float, *, cut_short: bool = False) -> None:
        """n_bytes > 0 came within took_s > 0. cut_short: there was more to come, and it took too long."""
        took_s = min(took_s, TOOK_S_MAX)
        if self.known:
            expected_s = self.expected_s(n_bytes)
            late, self._late = self._late, 0.0
            times = took_s / expected_s
            if took_s > FAR * expected_s + JITTER_S:
                if not cut_short and not late:
                    self._late = times
                    return
                self._move(times if cut_short else min(times, late))
            elif expected_s > FAR * took_s + JITTER_S:
                self._move(times)
        self._n = KEEP * self._n + 1
        self.n_bytes = KEEP * self.n_bytes + n_bytes
        self._y = KEEP * self._y + took_s
        self._xx = KEEP * self._xx + float(n_bytes) * n_bytes
        self._xy = KEEP * self._xy + n_bytes * took_s
        self._fit()

    def _move(self, times: float) -> None:
        self._y *= times
        self._xy *= times
        self.latency_s *= times
        self.s_per_byte *= times

    def _fit(self) -> None:
        mean_bytes, mean_s = self.n_bytes / self._n, self._y / self._n
        variance = self._xx / self._n - mean_bytes**2
        if variance > (_SPREAD * mean_bytes) ** 2:
            slope = (self._xy / self._n - mean_bytes * mean_s) / variance
        else:
            slope = (mean_s - self.latency_s) / mean_bytes
        most = mean_s / mean_bytes
        self.s_per_byte = min(max(slope, _LEAST * most), most)
        self.latency_s = max(0.0, mean_s - self.s_per_byte * mean_bytes)
