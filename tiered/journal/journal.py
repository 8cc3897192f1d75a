"""The journal of one worker: claimed, opened, and written by one thread that nobody waits for unless they ask to.

Changes go through a bounded queue. A full queue or a broken disk costs rows, never a stall: a lost row is a block
that will not be warm, and a lost removal is a row whose bytes will not verify. Both are counted, and said once.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tiered.journal.claim import Claim, claim_path
from tiered.journal.file import About, Changes, JournalFile
from tiered.journal.rows import JournalRow
from tiered.log import get_logger

BATCH_S: Final = 0.1
"""What is gathered for one transaction in batched mode, and so what a kill may cost."""

QUEUE_ROWS_MAX: Final = 100_000
"""Changes that wait for the disk: about 30 MB."""

CLOSE_S: Final = 1.0
"""What an orderly stop grants to the last batch."""

_log = get_logger("tiered.journal")


@dataclass(frozen=True, slots=True)
class JournalCounters:
    """Rows since the start: on the disk, and lost because the queue was full or the disk refused. pending: queued."""

    written: int = 0
    lost: int = 0
    pending: int = 0
    failing: bool = False


@dataclass(frozen=True, slots=True)
class _Beginning:
    about: About
    rows: Sequence[JournalRow]


class Journal:
    """Open from construction on; takes changes after :meth:`begin`.

    Errors: ConfigError when another worker has it, or the path cannot be used.
    """

    def __init__(self, path: Path, *, mode: Literal["batched", "strict"], node: str) -> None:
        self.path = path
        self.strict = mode == "strict"
        self._claim = Claim(claim_path(path))
        try:
            self._file = JournalFile(path, mode=mode, node=node)
        except BaseException:
            self._claim.release()
            raise
        self._node = node
        self._pool = ""
        self._beginning: _Beginning | None = None
        self._changed = threading.Condition()
        self._queue: list[tuple[Changes, Future[bool]]] = []
        self._queued_rows = 0
        self._written = self._lost = 0
        self._failing = self._full = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def earlier(self) -> tuple[About, list[JournalRow]]:
        """What the life before left here. Only before :meth:`begin`."""
        rows = self._file.rows()
        return self._file.about(), rows

    def set_aside(self, reason: str) -> None:
        """What the life before left is of no use. Only before :meth:`begin`."""
        self._file.set_aside(reason)

    def begin(
        self, *, layout: str, pool: str, rows: Sequence[JournalRow], then: Callable[[], object] = lambda: None
    ) -> None:
        """These rows lie in the pool of this life; changes are taken from now on. Written by the thread too, which
        then calls ``then``: until it has, the journal speaks of the earlier pool."""
        self._pool = pool
        self._beginning = _Beginning(About(self._node, layout, pool), rows)
        self._thread = threading.Thread(target=self._write, args=(then,), name="journal", daemon=True)
        self._thread.start()

    def note(self, changes: Changes) -> Future[bool]:
        """Hand changes to the writer; never blocks. The answer comes when they are on the disk, or will not be."""
        noted: Future[bool] = Future()
        if not changes:
            noted.set_result(True)
            return noted
        with self._changed:
            if self._stopping or self._queued_rows + len(changes) > QUEUE_ROWS_MAX:
                self._lost += len(changes)
                if not self._full:
                    self._full = True
                    closed, slow = "journal rows lost: it is closed", "journal rows lost: the disk does not keep up"
                    _log.warning(closed if self._stopping else slow, n_queued=self._queued_rows)
                noted.set_result(False)
                return noted
            self._queue.append((changes, noted))
            self._queued_rows += len(changes)
            self._changed.notify()
        return noted

    def counters(self) -> JournalCounters:
        with self._changed:
            return JournalCounters(self._written, self._lost, self._queued_rows, self._failing)

    def close(self, *, keep: bool) -> None:
        """Write what is queued, let go. keep: the bytes stay where they are for the next life. Harmless twice."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():  # the disk hangs; the kernel ends its claim with the process
                _log.warning("journal not closed: the disk does not answer", journal=str(self.path))
                return
        try:
            if not keep:
                self._file.forget_pool()
                self._file.remove_if_empty()
            self._file.close()
        except (sqlite3.Error, OSError) as error:
            _log.warning("journal not closed in order", journal=str(self.path), error=str(error))
        self._claim.release()

    # The writer's thread.

    def _write(self, then: Callable[[], object]) -> None:
        self._write_batch([])
        then()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._stopping)
                if not self.strict:  # a commit that waits for its row should wait for nothing else
                    self._changed.wait_for(lambda: self._stopping, BATCH_S)
                batch, self._queue = self._queue, []
                if not batch and self._stopping:
                    return
            self._write_batch(batch)

    def _write_batch(self, batch: list[tuple[Changes, Future[bool]]]) -> None:
        """What was to begin with first: where the disk refused it, changes mean nothing before it is there."""
        n_rows = sum(len(changes) for changes, _ in batch)
        beginning = self._beginning
        durable = False
        try:
            if beginning is not None:
                self._file.begin(beginning.about, beginning.rows)
                self._beginning = None
                self._count(len(beginning.rows))
            if batch:
                self._file.apply([changes for changes, _ in batch], pool=self._pool)
            durable = True
        except sqlite3.Error as error:
            self._fail(error, n_rows=n_rows)
            if self._beginning is not None:  # its rows are given up, that it begins is not
                self._fail(error, n_rows=len(self._beginning.rows))
                self._beginning = _Beginning(self._beginning.about, ())
        with self._changed:
            self._queued_rows -= n_rows
            if durable:
                self._written += n_rows
                if self._failing or self._full:
                    _log.info("journal written again", n_lost=self._lost)
                self._failing = self._full = False
        for _, noted in batch:
            noted.set_result(durable)

    def _count(self, n_written: int) -> None:
        with self._changed:
            self._written += n_written

    def _fail(self, error: sqlite3.Error, *, n_rows: int) -> None:
        with self._changed:
            self._lost += n_rows
            said, self._failing = self._failing, True
        if not said:
            _log.warning("journal not written; going on without it", journal=str(self.path), error=str(error))
