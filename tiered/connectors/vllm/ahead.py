"""An engine's KV memory on the host, made resident a little ahead of use.

vLLM reserves it all and leaves every page to its first write, so that a loaded prefix would be copied at the speed at
which the kernel finds and clears pages, several times slower than the copy. vLLM hands blocks out in the order of
their ids until each has been used once, so a thread keeps the next few hundred MiB resident, and no more: an engine
may have reserved most of the machine.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Final

import torch

AHEAD_BYTES: Final = 256 << 20
CHUNK_BYTES: Final = 8 << 20
"""Of one call, which cannot be interrupted."""

_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE: as if a byte of each page were written, without writing any. Linux 5.14."""

_libc = ctypes.CDLL(None, use_errno=True)


def populate(address: int, n_bytes: int) -> bool:
    """Make these bytes' pages resident. False where the kernel does not: it is older, or there is no memory."""
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    length = ctypes.c_size_t(address + n_bytes - start)
    return bool(_libc.madvise(ctypes.c_void_p(start), length, _POPULATE_WRITE) == 0)


class Ahead:
    """rows: as of ``rows_of``, on the host. The blocks from 0 on count as next at the start."""

    def __init__(
        self,
        rows: Sequence[torch.Tensor],
        *,
        ahead_bytes: int = AHEAD_BYTES,
        populate: Callable[[int, int], bool] = populate,
    ) -> None:
        self._rows = rows
        self._n_blocks = min(len(row) for row in rows)
        self._populate = populate
        block_bytes = sum(row.shape[1] for row in rows)
        self._window = max(1, ahead_bytes // block_bytes)
        self._step = max(1, CHUNK_BYTES // block_bytes)
        self._changed = threading.Condition()
        self._wanted = min(self._window, self._n_blocks)
        self._done = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tiered-ahead", daemon=True)
        self._thread.start()

    def used(self, blocks: Sequence[int]) -> None:
        """The engine uses these blocks by now."""
        wanted = min(max(blocks, default=0) + 1 + self._window, self._n_blocks)
        if wanted > self._wanted:  # written by this thread alone
            with self._changed:
                self._wanted = wanted
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._done < self._n_blocks:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._wanted > self._done)
                if self._closed:
                    return
                end = min(self._done + self._step, self._wanted)
            for row in self._rows:
                first, last = row[self._done], row[end - 1]
                if not self._populate(first.data_ptr(), last.data_ptr() + last.shape[0] - first.data_ptr()):
                    return
            self._done = end
