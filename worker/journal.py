"""The journal as the hot tier uses it: what it is told, what it gives back at the start, and the task that feeds it.

Nothing here makes a request wait, except that a commit waits for its row in strict mode, because it asked to.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tiered.core.adopt import row_of
from tiered.core.core import CacheCore, DirectoryEvents
from tiered.journal.file import Changes
from tiered.journal.journal import Journal, JournalCounters
from tiered.journal.rows import JournalRow
from tiered.layout import KvLayout
from tiered.log import get_logger
from tiered.pool import named
from tiered.pool.pool import BlockPool
from tiered.types import BlockHash
from worker.adoption import Earlier, Made, make_pool
from worker.settings import JournalSettings

DURABLE_S: Final = 5.0
"""A commit in strict mode waits no longer for a disk that hangs; its engine has given up long before."""

BUILD_S: Final = 1.0
"""A stop waits no longer for a pool that is just being made; its file is then found by the next life."""

_log = get_logger("worker.journal")


@dataclass(frozen=True, slots=True)
class JournalSnapshot:
    """Blocks and rows for the metrics. left: blocks of the earlier life that were not adopted, by reason."""

    counters: JournalCounters
    adopted: int
    warmed: int
    left: Mapping[str, int]


class HotJournal:
    """Open from construction on. Errors: ConfigError when another worker has it, or the path cannot be used."""

    def __init__(self, settings: JournalSettings, path: Path, *, node: str) -> None:
        assert settings.mode != "off"
        self.warmed = 0
        self._keep = settings.keep_on_stop
        self._journal = Journal(path, mode=settings.mode, node=node)
        # A hundred thousand rows take a second: read by the time that the first engine comes.
        reader = ThreadPoolExecutor(1, "journal-read")
        self._earlier = reader.submit(Earlier.of, self._journal)
        reader.shutdown(wait=False)
        self._stem = named.stem(node, path)
        self._making = threading.Lock()
        self._stopping = threading.Event()
        self._made: Made | None = None
        self._n_adopted = 0
        self._hits: Counter[BlockHash] = Counter()

    @property
    def strict(self) -> bool:
        return self._journal.strict

    def make_pool(
        self, new_core: Callable[[], CacheCore], layout: KvLayout, n_blocks: int, *, device: str
    ) -> tuple[CacheCore, BlockPool]:
        """The pool of this life with what verifies of the last one's; in a thread, since it takes seconds.

        Errors: ConfigError, RuntimeError; as if there were no journal.
        """
        with self._making:
            made = make_pool(
                self._journal,
                self._earlier.result(),
                new_core,
                layout,
                n_blocks,
                device=device,
                stem=self._stem,
                stopping=self._stopping,
            )
            self._n_adopted, made.adopted = len(made.adopted), ()
            self._made = made
        return made.core, made.pool

    def take_rows(self) -> list[JournalRow]:
        """Once: all that the earlier life left, adopted or not."""
        if self._made is None:
            return []
        rows, self._made.rows = self._made.rows, []
        return rows

    def used(self, hashes: Iterable[BlockHash]) -> None:
        self._hits.update(hashes)

    def note(self, core: CacheCore, events: DirectoryEvents) -> Future[bool]:
        """Hand on what came and what left. The answer is for those who want to wait for it."""
        stored = [self._row(core, block_hash) for block_hash in events.stored]
        return self._journal.note(Changes(stored=[row for row in stored if row], removed=events.removed))

    def note_uses(self, core: CacheCore) -> None:
        """Hand on what was used since the last time; by whom is told where they are several, since it changes."""
        if not self._hits:
            return
        hits, self._hits = self._hits, Counter()
        rows = [row for block_hash in hits if (row := self._row(core, block_hash)) and len(row.tenants) > 1]
        self._journal.note(Changes(stored=rows, hits=hits))

    async def durable(self, noted: Future[bool]) -> None:
        """Until it is on the disk, or the disk has refused it: that is counted, and no reason to fail a commit."""
        _, waiting = await asyncio.wait([asyncio.wrap_future(noted)], timeout=DURABLE_S)
        if waiting:
            _log.warning("a commit is answered before it is durable: the disk does not answer", seconds=DURABLE_S)

    def snapshot(self) -> JournalSnapshot:
        made = self._made
        return JournalSnapshot(
            counters=self._journal.counters(),
            adopted=self._n_adopted,
            warmed=self.warmed,
            left={} if made is None else dict(made.left),
        )

    def close(self) -> None:
        """Without ``keep_on_stop`` the pool file goes, and the journal claims no bytes. Harmless when done before."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if wait([self._earlier], timeout=BUILD_S).not_done or not self._making.acquire(timeout=BUILD_S):
            return
        try:
            if not self._keep:
                named.remove_pools(self._journal.path)  # while the claim is still ours
            if self._earlier.exception() is None:
                self._earlier.result().close()
            self._journal.close(keep=self._keep)
        finally:
            self._making.release()

    def _row(self, core: CacheCore, block_hash: BlockHash) -> JournalRow | None:
        block_id = core.index.find(block_hash)
        if block_id is None:
            return None
        return row_of(core, block_id, with_slot=self._made is not None and bool(self._made.name))
