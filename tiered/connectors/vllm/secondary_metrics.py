"""The store's counters as vLLM publishes them: what has grown since the last time, under fixed names and labels.

Knows no vLLM: a metric is a name, a kind, a sentence and its labels.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tiered.connectors.vllm.secondary_store import StoreCounters


class Kind(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    says: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """value: of a counter by how much it has grown."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


LOOKUPS: Final = Metric(
    "tiered:redis_lookups", Kind.COUNTER, "Answers given to vLLM's lookups of a chunk in Redis.", ("answer",)
)
CHUNKS: Final = Metric(
    "tiered:redis_chunks", Kind.COUNTER, "Chunks of load and store jobs, by how they ended.", ("job", "outcome")
)
MISSES: Final = Metric(
    "tiered:redis_load_misses", Kind.COUNTER, "Chunks that a load did not find or did not accept.", ("reason",)
)
PUTS: Final = Metric("tiered:redis_puts", Kind.COUNTER, "Chunks that were offered to Redis.", ("answer",))
BYTES: Final = Metric(
    "tiered:redis_bytes", Kind.COUNTER, "Bytes of chunks as Redis holds them, read and written.", ("direction",)
)
UNSHAREABLE: Final = Metric(
    "tiered:redis_unshareable", Kind.COUNTER, "Chunks left alone because their block hash is not SHA-256."
)
BREAKER_OPEN: Final = Metric(
    "tiered:redis_breaker_open", Kind.GAUGE, "1 while Redis is not asked because it did not answer."
)

METRICS: Final = (LOOKUPS, CHUNKS, MISSES, PUTS, BYTES, UNSHAREABLE, BREAKER_OPEN)


def samples(before: StoreCounters | None, now: StoreCounters) -> list[Sample]:
    """before: the counters of the last time, None for the first. Nothing, when nothing has happened since."""
    earlier = {} if before is None else dict(_totals(before))
    grown = [
        Sample(metric, value - earlier.get((metric, labels), 0), labels)
        for (metric, labels), value in _totals(now)
        if value != earlier.get((metric, labels), 0)
    ]
    if before is None or grown or before.tier.breaker_open != now.tier.breaker_open:
        grown.append(Sample(BREAKER_OPEN, float(now.tier.breaker_open)))
    return grown


def _totals(counters: StoreCounters) -> Iterator[tuple[tuple[Metric, tuple[str, ...]], float]]:
    tier = counters.tier
    yield from _labelled(LOOKUPS, {answer.value: n for answer, n in counters.answers.items()})
    yield from _labelled(MISSES, tier.misses)
    yield from _labelled(PUTS, {answer.value: n for answer, n in tier.puts.items()})
    yield from _labelled(BYTES, {"read": tier.bytes_read, "written": tier.bytes_written})
    for job, good, failed in (
        ("load", counters.chunks_loaded, counters.loads_failed),
        ("store", counters.chunks_stored, counters.stores_failed),
    ):
        yield (CHUNKS, (job, "done")), good
        yield (CHUNKS, (job, "failed")), failed
    yield (UNSHAREABLE, ()), counters.unshareable


def _labelled(metric: Metric, values: Mapping[str, int]) -> Iterator[tuple[tuple[Metric, tuple[str, ...]], float]]:
    for label, value in values.items():
        yield (metric, (label,)), value
