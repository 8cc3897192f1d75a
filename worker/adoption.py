"""Makes the pool of this life with what verifies of the last one's: bytes are copied first and looked at afterwards.

Copying is what makes it safe. Engines of the earlier life may still map its memory, and one may be in the middle of
writing; they never see the memory of this life, so nothing they do can change a byte that was verified.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from tiered.codec.frame import checksum_of
from tiered.core.adopt import Adoption, adopt
from tiered.core.core import CacheCore
from tiered.journal.file import About
from tiered.journal.journal import Journal
from tiered.journal.rows import JournalRow
from tiered.layout import KvLayout
from tiered.log import get_logger
from tiered.pool import named
from tiered.pool.pool import BlockPool
from tiered.types import BlockId

ADOPT_S: Final = 4.0
"""What copying and verifying may take of the first engine's attach, which waits 10 s in all. What is left then is
dropped, the oldest first."""

THREADS: Final = min(4, os.cpu_count() or 1)
"""Copying and hashing let go of the interpreter; memory is full at about four."""

_log = get_logger("worker.journal")


@dataclass(frozen=True, slots=True)
class Earlier:
    """What the life before left: the journal's words and rows, and its memory while that is still there."""

    about: About
    rows: list[JournalRow]
    memory: named.EarlierPool | None

    @classmethod
    def of(cls, journal: Journal) -> Earlier:
        about, rows = journal.earlier()
        return cls(about, rows, named.EarlierPool.find(about.pool))

    def close(self) -> None:
        """Harmless when done before."""
        if self.memory is not None:
            self.memory.close()


@dataclass(slots=True)
class Made:
    """The pool and core of this life. name: of its file in RAM, empty where the bytes end with the process.

    adopted: with the slots they have now. left: blocks that were not, by reason. rows: all that the journal knew.
    """

    core: CacheCore
    pool: BlockPool
    name: str = ""
    adopted: Sequence[JournalRow] = ()
    left: Counter[str] = field(default_factory=Counter)
    rows: list[JournalRow] = field(default_factory=list)


def make_pool(
    journal: Journal,
    earlier: Earlier,
    new_core: Callable[[], CacheCore],
    layout: KvLayout,
    n_blocks: int,
    *,
    device: str,
    stem: str,
    stopping: threading.Event,
) -> Made:
    """Build the pool, adopt into it, and let the journal begin to speak of it. Errors: ConfigError, RuntimeError.

    What fails leaves the earlier life's pool for the next try.
    """
    about, rows, memory = earlier.about, earlier.rows, earlier.memory
    if about.layout and about.layout != layout.describe():
        journal.set_aside(f"its blocks are laid out as {about.layout}, the engine's as {layout.describe()}")
        rows, memory = [], None
    if device == "cpu":
        made = _on_cpu(memory, rows, new_core, layout, n_blocks, stem=stem, stopping=stopping)
    else:
        pool = BlockPool(layout, n_blocks, device=device)
        made = Made(new_core(), pool, rows=rows)
    earlier.close()
    journal.begin(
        layout=layout.describe(),
        pool=made.name,
        rows=made.adopted if made.name else (),
        then=lambda: named.remove_pools(journal.path, but=made.name),
    )
    return made


def _on_cpu(
    memory: named.EarlierPool | None,
    rows: list[JournalRow],
    new_core: Callable[[], CacheCore],
    layout: KvLayout,
    n_blocks: int,
    *,
    stem: str,
    stopping: threading.Event,
) -> Made:
    try:
        name, descriptor = _named_memory(stem, n_blocks * layout.block_bytes, memory)
    except OSError as error:
        _log.warning("the pool gets no file in /dev/shm; its bytes will not outlive this process", why=error.strerror)
        pool = BlockPool(layout, n_blocks)
        assert pool.descriptor is not None  # it is in host memory
        core, name = new_core(), ""
        adoption = _adopt(core, rows, memory, pool.descriptor, layout, stopping)
    else:
        core, pool, adoption, name = _in_file(name, descriptor, rows, memory, new_core, layout, n_blocks, stopping)
    return Made(core, pool, name, adoption.adopted, adoption.left, rows)


def _in_file(
    name: str,
    descriptor: int,
    rows: list[JournalRow],
    memory: named.EarlierPool | None,
    new_core: Callable[[], CacheCore],
    layout: KvLayout,
    n_blocks: int,
    stopping: threading.Event,
) -> tuple[CacheCore, BlockPool, Adoption, str]:
    """The rest of the memory is taken once what was adopted has given back its own; the name is empty where that
    fails."""
    try:
        core = new_core()
        adoption = _adopt(core, rows, memory, descriptor, layout, stopping)
        os.posix_fallocate(descriptor, 0, n_blocks * layout.block_bytes)  # a page that is missing would be a SIGBUS
    except OSError as error:  # the room was there, and went to somebody else meanwhile
        os.close(descriptor)
        _unlink(name)
        _log.warning("the pool gets no file in /dev/shm, so nothing is adopted", why=error.strerror)
        pool = BlockPool(layout, n_blocks)
        return new_core(), pool, Adoption(), ""
    except BaseException:
        os.close(descriptor)
        _unlink(name)
        raise
    try:
        return core, BlockPool(layout, n_blocks, descriptor=descriptor), adoption, name
    except BaseException:
        _unlink(name)
        raise


def _named_memory(stem: str, nbytes: int, memory: named.EarlierPool | None) -> tuple[str, int]:
    """Errors: OSError where /dev/shm does not take the pool, with what the earlier one gives back."""
    comes_back = 0 if memory is None or memory.lingering else memory.resident_bytes
    if named.room_bytes() + comes_back < nbytes:
        raise OSError(0, f"it has room for {named.room_bytes()} bytes, the pool takes {nbytes}")
    path, descriptor = named.create(stem, nbytes)
    return path.name, descriptor


def _adopt(
    core: CacheCore,
    rows: Sequence[JournalRow],
    memory: named.EarlierPool | None,
    descriptor: int,
    layout: KvLayout,
    stopping: threading.Event,
) -> Adoption:
    if memory is None:
        return Adoption()
    started = time.monotonic()
    ends_at = started + ADOPT_S
    with ThreadPoolExecutor(THREADS, "adopt") as threads:
        bring = _Bring(memory, descriptor, layout.block_bytes, threads)
        adoption = adopt(core, rows, bring, in_time=lambda: time.monotonic() < ends_at and not stopping.is_set())
    memory.give_memory_back(0, memory.nbytes)  # the file itself goes when the journal needs it no more
    took = time.monotonic() - started
    _log.info(
        "blocks of the earlier life adopted",
        n_blocks=len(adoption.adopted),
        left=dict(adoption.left),
        seconds=round(took, 3),
    )
    return adoption


class _Bring:
    """Copies blocks out of the earlier file, verifies the copies, and only then puts them into the new one."""

    def __init__(
        self, earlier: named.EarlierPool, descriptor: int, block_bytes: int, threads: ThreadPoolExecutor
    ) -> None:
        self._earlier = earlier
        self._descriptor = descriptor
        self._block_bytes = block_bytes
        self._threads = threads
        self._own = threading.local()

    def __call__(self, batch: Sequence[tuple[JournalRow, BlockId]]) -> list[bool]:
        brought = list(self._threads.map(self._one, batch))
        for (row, _), is_there in zip(batch, brought, strict=True):
            assert row.slot is not None  # adopt() offers no others
            if is_there:  # else another row may know better whose bytes these are
                self._earlier.give_memory_back(row.slot * self._block_bytes, self._block_bytes)
        return brought

    def _one(self, wanted: tuple[JournalRow, BlockId]) -> bool:
        row, block_id = wanted
        assert row.slot is not None
        buffer = getattr(self._own, "buffer", None)
        if buffer is None:
            buffer = self._own.buffer = memoryview(bytearray(self._block_bytes))
        try:
            if not self._earlier.read(row.slot * self._block_bytes, buffer) or checksum_of(buffer) != row.checksum:
                return False
            return os.pwrite(self._descriptor, buffer, block_id * self._block_bytes) == self._block_bytes
        except OSError:  # no room, which whoever needs the rest of the memory will find too
            return False


def _unlink(name: str) -> None:
    if name:
        (named.SHM_DIR / name).unlink(missing_ok=True)
