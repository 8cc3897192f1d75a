"""Host buffers of one block each, lent and returned: the bound on copies that are on their way down."""

from __future__ import annotations

import threading

import torch


class StagingBuffers:
    """``n_buffers`` buffers of ``block_bytes``; their memory is touched once and reused. Thread-safe.

    pinned: page-locked, so that a device copies into it at full speed.
    """

    def __init__(self, n_buffers: int, block_bytes: int, *, pinned: bool = False) -> None:
        memory = torch.zeros((n_buffers, block_bytes), dtype=torch.uint8, pin_memory=pinned)
        self._free: list[memoryview] = [row.numpy().data for row in memory]
        self._n_buffers = n_buffers
        self._changed = threading.Condition()

    def lend(self, *, timeout_s: float) -> memoryview | None:
        """A buffer, or None when all stay out for ``timeout_s``: the caller then drops its copy."""
        with self._changed:
            if self._changed.wait_for(lambda: bool(self._free), timeout_s):
                return self._free.pop()
            return None

    def give_back(self, buffer: memoryview) -> None:
        with self._changed:
            self._free.append(buffer)
            self._changed.notify_all()

    def wait_idle(self, *, timeout_s: float) -> bool:
        """Until none is out; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._free) == self._n_buffers, timeout_s)
