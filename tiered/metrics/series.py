"""A series' declaration, and the making of Prometheus families from it and from numbers.

Owns the rules of naming. The declarations are in the modules beside this one, a catalogue for each kind of process;
where the numbers come from is the processes' business.
"""

from __future__ import annotations

import enum
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from tiered import __version__
from tiered.metrics.timing import BUCKETS_S, Timing

_LE: Final = (*(str(bound) for bound in BUCKETS_S), "+Inf")

Values: TypeAlias = Mapping[tuple[str, ...], float]
"""By the values of the labels, in the order in which they were declared."""


class Kind(enum.StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """name: as it is queried, so a counter's ends in ``_total``; a histogram's samples add ``_bucket`` and so on.

    moves_idle: whether it may grow while nobody asks for anything; of counters and histograms alone.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    moves_idle: bool = False

    def __post_init__(self) -> None:
        if not self.name.startswith("tiered_") or (self.kind is Kind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: a name begins with tiered_, and a counter's, no other, ends in _total")
        if self.kind is Kind.HISTOGRAM and not self.name.endswith("_seconds"):
            raise ValueError(f"{self.name}: histograms are of seconds")

    def one(self, value: float) -> Metric:
        """Of a series without labels."""
        return self.of({(): value})

    def by(self, values: Mapping[str, float]) -> Metric:
        """Of a series with one label."""
        return self.of({(label,): value for label, value in values.items()})

    def of(self, values: Values) -> Metric:
        family = self._family()
        for label_values, value in values.items():
            family.samples.append(Sample(self.name, self._labelled(label_values), float(value)))
        return family

    def timed(self, timings: Mapping[tuple[str, ...], Timing]) -> Metric:
        """Of a histogram."""
        family = self._family()
        for label_values, timing in timings.items():
            labels, up_to = self._labelled(label_values), list(accumulate(timing.counts))
            for le, count in zip(_LE, up_to, strict=True):
                family.samples.append(Sample(f"{self.name}_bucket", {**labels, "le": le}, float(count)))
            family.samples.append(Sample(f"{self.name}_count", labels, float(up_to[-1])))
            family.samples.append(Sample(f"{self.name}_sum", labels, timing.sum_s))
        return family

    def _family(self) -> Metric:
        return Metric(self.name.removesuffix("_total"), self.meaning, self.kind.value)

    def _labelled(self, values: tuple[str, ...]) -> dict[str, str]:
        return dict(zip(self.labels, values, strict=True))


@dataclass(slots=True)
class Catalogue:
    """The series of one kind of process, in the order in which they are told of. service: its ``service`` label."""

    service: str
    _series: dict[str, Series] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Series]:
        return iter(self._series.values())

    def counter(self, name: str, meaning: str, *labels: str, moves_idle: bool = False) -> Series:
        return self._add(Series(name, Kind.COUNTER, meaning, labels, moves_idle))

    def gauge(self, name: str, meaning: str, *labels: str) -> Series:
        return self._add(Series(name, Kind.GAUGE, meaning, labels))

    def histogram(self, name: str, meaning: str, *labels: str) -> Series:
        return self._add(Series(name, Kind.HISTOGRAM, meaning, labels))

    def add(self, series: Series) -> Series:
        """One that other processes have too."""
        return self._add(series)

    def _add(self, series: Series) -> Series:
        if series.name in self._series:
            raise ValueError(f"{series.name} is declared twice")
        self._series[series.name] = series
        return series


BUILD: Final = Series(
    "tiered_build_info",
    Kind.GAUGE,
    "Which build this is; always 1. service: `worker`, `coordinator` or `serve`",
    ("service", "version", "python"),
)


def build_info(catalogue: Catalogue) -> Metric:
    return BUILD.of({(catalogue.service, __version__, platform.python_version()): 1.0})
