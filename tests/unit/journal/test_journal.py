"""The writer: nobody waits for it, nothing it loses is silent, and one process has it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import tiered.journal.journal
from tests.support.worker_process import until
from tests.unit.journal.builders import POOL, rows_of
from tiered.errors import ConfigError
from tiered.journal.claim import claim_path
from tiered.journal.file import About, Changes
from tiered.journal.journal import Journal
from tiered.journal.rows import JournalRow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiered-w1.journal"


@contextmanager
def journal(path: Path, *, mode: str = "batched", keep: bool = True) -> Iterator[Journal]:
    opened = Journal(path, mode=mode, node="w1")  # type: ignore[arg-type]
    opened.begin(layout="a layout", pool=POOL, rows=[])
    try:
        yield opened
    finally:
        opened.close(keep=keep)


def slots(path: Path) -> list[int | None]:
    opened = Journal(path, mode="batched", node="w1")
    _, rows = opened.earlier()
    opened.close(keep=True)
    return [row.slot for row in sorted(rows, key=lambda row: row.depth)]


@pytest.mark.parametrize("mode", ["batched", "strict"])
def test_what_was_noted_is_there_for_the_next_life(path: Path, mode: str) -> None:
    with journal(path, mode=mode) as opened:
        assert opened.note(Changes(stored=rows_of("a", 3))).result(5)
        opened.note(Changes(removed=[rows_of("a", 3)[2].block_hash]))
    assert slots(path) == [0, 1, None]


def test_an_orderly_end_claims_no_bytes_and_leaves_no_lock(path: Path) -> None:
    with journal(path, keep=False) as opened:
        opened.note(Changes(stored=rows_of("a", 3)))
        assert claim_path(path).exists()
    assert not claim_path(path).exists()
    assert slots(path) == [None, None, None]


def test_a_second_process_is_refused_and_told_who_has_it(path: Path) -> None:
    with journal(path), pytest.raises(ConfigError, match=r"is in use by another worker \(pid \d+\)"):
        Journal(path, mode="batched", node="w1")
    with journal(path):
        pass


def test_a_lock_file_that_nobody_holds_is_taken_over(path: Path) -> None:
    claim_path(path).write_text("4711\n")
    with journal(path):
        pass


def test_a_disk_that_refuses_is_said_once_counted_and_gone_on_without(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with journal(path) as opened:
        db = opened._file._db
        [pages] = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages}")
        for n in range(3):
            assert opened.note(Changes(stored=rows_of(f"p{n}", 400))).result(5) is False
        counters = opened.counters()
        assert (counters.lost, counters.written, counters.pending, counters.failing) == (1200, 0, 0, True)
        assert [r.getMessage().count("database or disk is full") for r in caplog.records] == [1]
        db.execute("PRAGMA max_page_count = 100000")
        assert opened.note(Changes(stored=rows_of("a", 2))).result(5)
        assert (opened.counters().written, opened.counters().failing) == (2, False)
    assert slots(path) == [0, 1]


def test_a_full_queue_costs_rows_and_never_a_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tiered.journal.journal, "QUEUE_ROWS_MAX", 10)
    gate, entered = threading.Event(), threading.Event()
    with journal(path) as opened:
        write = opened._file.apply

        def slow(*args: object, **kwargs: object) -> None:
            entered.set()
            assert gate.wait(10)
            write(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(opened._file, "apply", slow)
        first = opened.note(Changes(stored=rows_of("a", 4)))
        assert entered.wait(5)
        opened.note(Changes(stored=rows_of("b", 6)))
        for n in range(3):
            assert opened.note(Changes(stored=rows_of(f"c{n}", 1))).result(0) is False
        assert (opened.counters().lost, opened.counters().pending) == (3, 10)
        assert [record.getMessage().count("the disk does not keep up") for record in caplog.records] == [1]
        gate.set()
        assert first.result(5)
        until(lambda: opened.counters().pending == 0, "the queue was written")
        assert opened.counters().written == 10


def test_nothing_to_write_touches_no_disk(path: Path) -> None:
    with journal(path) as opened:
        assert opened.note(Changes()).result(0)
        assert opened.counters().written == 0


def test_what_is_noted_after_the_end_is_lost_and_counted_and_the_disk_is_not_blamed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with journal(path) as opened:
        opened.close(keep=True)
        assert opened.note(Changes(stored=rows_of("a", 1))).result(0) is False
        assert opened.counters().lost == 1
    assert "journal rows lost: it is closed" in caplog.text
    assert "disk" not in caplog.text


def test_an_orderly_end_writes_what_is_queued(path: Path) -> None:
    with journal(path) as opened:
        for n in range(50):
            opened.note(Changes(stored=rows_of(f"p{n}", 10)))
    assert len(slots(path)) == 500


def test_many_threads_may_note_at_once(path: Path) -> None:
    def note(opened: Journal, number: int) -> None:
        for n in range(20):
            opened.note(Changes(stored=rows_of(f"{number}/{n}", 2)))

    with journal(path) as opened:
        threads = [threading.Thread(target=note, args=(opened, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert len(slots(path)) == 8 * 20 * 2


def test_where_it_could_not_begin_it_begins_with_the_next_batch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Journal(path, mode="batched", node="w1")
    begin, refusals = opened._file.begin, iter([sqlite3.OperationalError("disk I/O error")])

    def refuse_once(about: About, rows: Sequence[JournalRow]) -> None:
        for error in refusals:
            raise error
        begin(about, rows)

    monkeypatch.setattr(opened._file, "begin", refuse_once)
    done = threading.Event()
    opened.begin(layout="a layout", pool=POOL, rows=rows_of("a", 3), then=done.set)
    assert done.wait(5)
    assert opened.note(Changes(stored=rows_of("b", 2))).result(5)
    assert (opened.counters().written, opened.counters().lost) == (2, 3)
    opened.close(keep=True)
    assert slots(path) == [0, 1]


def test_what_follows_the_beginning_comes_after_it(path: Path) -> None:
    seen: list[int] = []
    opened = Journal(path, mode="batched", node="w1")
    opened.begin(
        layout="a layout", pool=POOL, rows=rows_of("a", 3), then=lambda: seen.append(opened.counters().written)
    )
    opened.close(keep=True)
    assert seen == [3]
    assert slots(path) == [0, 1, 2]


def test_a_journal_with_nothing_in_it_leaves_no_file(path: Path) -> None:
    with journal(path, keep=False):
        pass
    assert list(path.parent.iterdir()) == []
    Journal(path, mode="batched", node="w1").close(keep=False)
    assert list(path.parent.iterdir()) == []
