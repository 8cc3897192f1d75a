"""Which page comes before which, as seen in SGLang's calls.

SGLang names the pages before a batch only on some of its paths, and not always when asked to; a page's key determines
the one before it, so what was seen once stays true. What is not known costs order of eviction, never a wrong byte.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

PAGES_MAX: Final = 65_536
"""About 14 MB; the pages seen first are forgotten first."""


class Lineage:
    """Safe to use from several threads."""

    def __init__(self, *, pages_max: int = PAGES_MAX) -> None:
        self._before: dict[str, str] = {}
        self._pages_max = pages_max
        self._lock = threading.Lock()

    def note(self, keys: Sequence[str], prefix_keys: Sequence[str] | None = None) -> str | None:
        """Learn a run of keys, each before the next; returns the key before the first, where it is known."""
        if not keys:
            return None
        with self._lock:
            known = prefix_keys[-1] if prefix_keys else self._before.get(keys[0])
            link = known
            for key in keys:
                if link is not None:
                    self._before[key] = link
                link = key
            while len(self._before) > self._pages_max:
                del self._before[next(iter(self._before))]
        return known

    def __len__(self) -> int:
        return len(self._before)
