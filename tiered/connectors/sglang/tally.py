"""How many pages moved and how fast, since SGLang asked last."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

BATCHES_MAX: Final = 4_096
"""Nobody may ever ask."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One entry for each batch. Units: pages; GiB a second, as SGLang's own backends have it."""

    pages: list[int]
    rates: list[float]


class Tally:
    """Of one direction. Safe to use from several threads."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._batches: deque[tuple[int, float]] = deque(maxlen=BATCHES_MAX)
        self._lock = threading.Lock()

    def add(self, n_pages: int, took_s: float) -> None:
        """A batch that moved nothing is none."""
        if n_pages:
            with self._lock:
                self._batches.append((n_pages, n_pages * self._page_bytes / (1 << 30) / max(took_s, 1e-9)))

    def take(self) -> Moved:
        with self._lock:
            batches = list(self._batches)
            self._batches.clear()
        return Moved([n_pages for n_pages, _ in batches], [rate for _, rate in batches])
