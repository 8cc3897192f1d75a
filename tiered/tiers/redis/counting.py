"""What the Redis tier has done: blocks and bytes by what became of them, calls by how long they took."""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tiered.clock import Clock
from tiered.codec.value import Opened, Value
from tiered.metrics.timing import Timing
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.breaker import Breaker
from tiered.tracing import span


class Asked(enum.StrEnum):
    """What a call of Redis is for."""

    LOOKUP = "lookup"
    GET = "get"
    PUT = "put"
    CONTROL = "control"
    """One script of the books."""


@dataclass(frozen=True, slots=True)
class RedisTierCounters:
    """Blocks, except where the name says bytes: of payload, as Redis holds it. codecs: what was stored, by codec.
    Misses are by reason: absent, unavailable, or what was wrong with the value (length, magic, version, header, hash,
    scope, codec, checksum, decode)."""

    hits: int
    misses: Mapping[str, int]
    puts: Mapping[PutAnswer, int]
    codecs: Mapping[str, int]
    bytes_read: int
    bytes_written: int
    breaker_open: bool
    breaker_opened_total: int
    replicated: Mapping[str, int] = field(default_factory=dict)
    """Blocks stored that were to be in two places: ``yes``, ``late``: no replica said in time that it has them, or
    ``no replica``: there is none."""
    took: Mapping[Asked, Timing] = field(default_factory=dict)
    """Calls, failed ones included."""
    failed: Mapping[Asked, int] = field(default_factory=dict)
    """Of those, the ones that no server answered."""


class Counting:
    """Of one tier, for any number of threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hits = 0
        self._misses: Counter[str] = Counter()
        self._puts: Counter[PutAnswer] = Counter()
        self._codecs: Counter[str] = Counter()
        self._bytes_read = 0
        self._bytes_written = 0
        self._replicated: Counter[str] = Counter()
        self._took = {asked: Timing() for asked in Asked}
        self._failed = dict.fromkeys(Asked, 0)

    def note_gets(self, hits: Sequence[Opened], *, misses: Iterable[str]) -> None:
        with self._lock:
            self._hits += len(hits)
            self._bytes_read += sum(value.stored_bytes for value in hits)
            self._misses.update(misses)

    def note_puts(self, answers: Iterable[PutAnswer], *, stored: Sequence[Value]) -> None:
        with self._lock:
            self._puts.update(answers)
            self._codecs.update(value.codec for value in stored)
            self._bytes_written += sum(value.stored.nbytes for value in stored)

    def note_replicated(self, outcome: str, n_blocks: int) -> None:
        with self._lock:
            self._replicated[outcome] += n_blocks

    @contextmanager
    def timed(self, asked: Asked) -> Iterator[None]:
        """Note how long a call took, and whether it was answered."""
        began = self._clock.now()
        n_failed = 1
        try:
            with span(f"redis.{asked.value}"):
                yield
            n_failed = 0
        finally:
            took_s = self._clock.now() - began
            with self._lock:
                self._took[asked].note(took_s)
                self._failed[asked] += n_failed

    def counters(self, breaker: Breaker) -> RedisTierCounters:
        with self._lock:
            return RedisTierCounters(
                hits=self._hits,
                misses=dict(self._misses),
                puts=dict(self._puts),
                codecs=dict(self._codecs),
                bytes_read=self._bytes_read,
                bytes_written=self._bytes_written,
                breaker_open=breaker.is_open,
                breaker_opened_total=breaker.opened_total,
                replicated=dict(self._replicated),
                took={asked: took.copy() for asked, took in self._took.items()},
                failed=dict(self._failed),
            )
