"""Counts what the connector did since it was last asked; one for each side.

Plain sums and short lists of durations, so that those of several ranks can be added up and sent as they are.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tiered.types import Source

DURATIONS_MAX: Final = 1_000
"""Of one kind between two looks; what comes after is counted but not kept."""


class Tally:
    """Any thread counts; the engine's takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._durations: dict[str, list[float]] = {}

    def loaded(self, sources: Iterable[Source], block_tokens: int) -> None:
        """Blocks that a request did not have to compute, by where they were found."""
        with self._lock:
            for source in sources:
                self._counts[f"{source.value}_hit_tokens"] += block_tokens

    def gave_up(self) -> None:
        """A request waited for its lookup as long as it may."""
        self.count("lookups_given_up")

    def looked_up(self, took_s: float) -> None:
        self._timed("lookup", took_s)

    def copied_in(self, *, n_blocks: int, n_bytes: int, n_failed: int, took_s: float) -> None:
        self.count("load_blocks", n_blocks)
        self.count("load_bytes", n_bytes)
        if n_failed:
            self.count("load_failures")
            self.count("load_failed_blocks", n_failed)
        self._timed("load", took_s)

    def stored(self, *, n_blocks: int, n_bytes: int, reason: str, took_s: float) -> None:
        """reason: why less than all was stored, or ''."""
        self.count("store_blocks", n_blocks)
        self.count("store_bytes", n_bytes)
        if reason:
            self.count("stores_cut_short")
        self._timed("store", took_s)

    def count(self, what: str, n: int = 1) -> None:
        with self._lock:
            self._counts[what] += n

    def _timed(self, what: str, took_s: float) -> None:
        with self._lock:
            self._counts[f"{what}s"] += 1
            kept = self._durations.setdefault(f"{what}_s", [])
            if len(kept) < DURATIONS_MAX:
                kept.append(took_s)

    def take(self) -> dict[str, Any]:
        """All of it, which then begins anew."""
        with self._lock:
            taken: dict[str, Any] = {**self._counts, **self._durations}
            self._counts, self._durations = Counter(), {}
        return taken


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Of two sides or ranks."""
    total = dict(one)
    for name, value in other.items():
        if isinstance(value, list):
            total[name] = [*total.get(name, []), *value][:DURATIONS_MAX]
        else:
            total[name] = total.get(name, 0) + value
    return total
