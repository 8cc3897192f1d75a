"""The journal's file: what is written is read again, and what is not ours is set aside, not read."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tiered.journal.file
from tests.unit.core.builders import BLUE, RED
from tests.unit.journal.builders import POOL, rows_of
from tiered.errors import ConfigError
from tiered.journal.file import ASIDES_MAX, About, Changes, JournalFile
from tiered.journal.rows import JournalRow

ABOUT = About("w1", "a layout", POOL)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiered-w1.journal"


def open_file(path: Path, *, node: str = "w1") -> JournalFile:
    return JournalFile(path, mode="batched", node=node)


def write(path: Path, rows: list[JournalRow]) -> None:
    file = open_file(path)
    file.begin(ABOUT, rows)
    file.close()


def read(path: Path) -> dict[bytes, JournalRow]:
    file = open_file(path)
    try:
        return {row.block_hash: row for row in file.rows()}
    finally:
        file.close()


def asides(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.glob("*.aside-?"))


def alter(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def test_rows_come_back_as_they_were_written(path: Path) -> None:
    rows = [*rows_of("a", 3, tenants=(RED, BLUE), hits=7, touched=5), *rows_of("b", 2, first_slot=None)]
    write(path, rows)
    assert read(path) == {row.block_hash: row for row in rows}
    assert asides(path) == []


def test_changes_are_applied_in_order_and_uses_add_up(path: Path) -> None:
    a, b = rows_of("a", 2)
    file = open_file(path)
    file.begin(ABOUT, [])
    file.apply([Changes(stored=[a, b])], pool=POOL)
    file.apply([Changes(hits={a.block_hash: 2}), Changes(removed=[b.block_hash])], pool=POOL)
    file.apply([Changes(hits={a.block_hash: 3})], pool=POOL)
    got = {row.block_hash: row for row in file.rows()}
    file.close()
    assert (got[a.block_hash].hits, got[a.block_hash].slot) == (5, a.slot)
    assert (got[b.block_hash].slot, got[b.block_hash].checksum) == (None, None)
    assert got[a.block_hash].touched > got[b.block_hash].touched


def test_a_block_that_comes_back_keeps_its_uses(path: Path) -> None:
    [a] = rows_of("a", 1)
    file = open_file(path)
    file.begin(ABOUT, [replace(a, hits=9)])
    file.apply([Changes(removed=[a.block_hash])], pool=POOL)
    file.apply([Changes(stored=[replace(a, slot=4)])], pool=POOL)
    [got] = file.rows()
    file.close()
    assert (got.hits, got.slot) == (9, 4)


def test_a_new_pool_claims_no_bytes_of_the_old_one(path: Path) -> None:
    write(path, rows_of("a", 3))
    file = open_file(path)
    file.begin(replace(ABOUT, pool=POOL[:-1] + "0"), rows_of("b", 1))
    assert {row.block_hash: row.slot for row in file.rows()} == {
        **{row.block_hash: None for row in rows_of("a", 3)},
        **{row.block_hash: 0 for row in rows_of("b", 1)},
    }
    file.close()


def test_uses_go_on_counting_after_a_restart(path: Path) -> None:
    write(path, rows_of("a", 1, touched=41))
    file = open_file(path)
    file.begin(ABOUT, [])
    file.apply([Changes(stored=rows_of("b", 1))], pool=POOL)
    got = {row.touched for row in file.rows()}
    file.close()
    assert min(got) == 41 < 42 < max(got)


@pytest.mark.parametrize("column", ["hash", "checksum", "parent", "scope"])
def test_a_flipped_bit_in_what_binds_a_hash_to_bytes_leaves_no_bytes_to_adopt(path: Path, column: str) -> None:
    write(path, rows_of("a", 2)[1:])
    alter(path, f"UPDATE block SET {column} = CAST(x'00' || substr({column}, 2) AS BLOB)")
    assert [row.slot for row in read(path).values()] == [None]


@pytest.mark.parametrize(
    "change", ["slot = 3", "tenants = '[\"blue\"]'", "depth = 7", "seal = NULL", "slot = 'x'", "checksum = 5"]
)
def test_a_row_that_changed_leaves_no_bytes_to_adopt(path: Path, change: str) -> None:
    write(path, rows_of("a", 2)[1:])
    alter(path, f"UPDATE block SET {change}")
    assert all(row.slot is None for row in read(path).values())


def test_rows_of_another_pool_leave_no_bytes_to_adopt(path: Path) -> None:
    write(path, rows_of("a", 2))
    alter(path, "UPDATE about SET value = 'tiered-pool-another' WHERE name = 'pool'")
    assert [row.slot for row in read(path).values()] == [None, None]


@pytest.mark.parametrize(
    "change", ["tenants = 'x'", "tenants = '[]'", "tenants = '[1]'", "hits = -1", "parent = x'01'"]
)
def test_a_row_that_makes_no_sense_is_left_out(path: Path, change: str) -> None:
    write(path, rows_of("a", 2))
    alter(path, f"UPDATE block SET {change} WHERE depth = 1")
    assert [row.depth for row in read(path).values()] == [0]


# Files that are not ours.


def truncated_in_a_page(path: Path) -> None:
    write(path, rows_of("a", 500))
    os.truncate(path, path.stat().st_size // 2 + 100)


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(10_000))


def garbage_behind_a_good_header(path: Path) -> None:
    write(path, rows_of("a", 500))
    with path.open("r+b") as file:
        file.seek(4096 + 50)
        file.write(os.urandom(20_000))


def text(path: Path) -> None:
    path.write_text("not a database\n")


def another_program(path: Path) -> None:
    alter(path, "CREATE TABLE cookies (name TEXT)")


def a_later_version(path: Path) -> None:
    write(path, rows_of("a", 2))
    alter(path, "PRAGMA user_version = 2")


def another_node(path: Path) -> None:
    file = open_file(path, node="w2")
    file.begin(About("w2", "a layout", POOL), rows_of("a", 2))
    file.close()


def without_its_tables(path: Path) -> None:
    write(path, rows_of("a", 2))
    alter(path, "DROP TABLE block")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (truncated_in_a_page, "torn"),
        (garbage, "torn"),
        (garbage_behind_a_good_header, "torn"),
        (text, "torn"),
        (another_program, "another program"),
        (a_later_version, "version 2, this release reads 1"),
        (another_node, "it belongs to node w2, this is w1"),
        (without_its_tables, "torn"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_is_not_ours_is_set_aside_with_the_reason_and_the_start_is_empty(
    path: Path, spoil: Callable[[Path], None], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(path)
    before = path.read_bytes()
    assert read(path) == {}
    assert asides(path) == [f"{path.name}.aside-1"]
    assert path.with_name(f"{path.name}.aside-1").read_bytes() == before
    [record] = caplog.records
    assert "journal set aside" in record.getMessage()
    assert why in record.getMessage()
    write(path, rows_of("b", 2))
    assert len(read(path)) == 2


def test_few_files_are_kept_aside_and_the_oldest_makes_room(path: Path) -> None:
    for n in range(ASIDES_MAX + 2):
        path.write_text(f"garbage {n}")
        open_file(path).close()
    assert len(asides(path)) == ASIDES_MAX
    kept = {path.with_name(name).read_text() for name in asides(path)}
    assert f"garbage {ASIDES_MAX + 1}" in kept
    assert "garbage 0" not in kept


def test_an_empty_file_is_a_new_journal(path: Path) -> None:
    path.touch()
    assert read(path) == {}
    assert asides(path) == []


def test_what_a_killed_writer_left_in_the_log_is_read(path: Path, tmp_path: Path) -> None:
    file = open_file(path)
    file.begin(ABOUT, rows_of("a", 3))
    copy = tmp_path / "copy.journal"
    for suffix in ("", "-wal"):
        Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    file.close()
    assert len(read(copy)) == 3


@pytest.mark.parametrize("n_cut", [1, 100, 4_000])
def test_a_log_cut_short_costs_its_last_batch_and_no_more(path: Path, tmp_path: Path, n_cut: int) -> None:
    file = open_file(path)
    file.begin(ABOUT, rows_of("a", 3))
    file.apply([Changes(stored=rows_of("b", 2, first_slot=3))], pool=POOL)
    copy = tmp_path / "copy.journal"
    wal = Path(f"{path}-wal").read_bytes()
    copy.write_bytes(path.read_bytes())
    Path(f"{copy}-wal").write_bytes(wal[:-n_cut])
    file.close()
    assert set(read(copy)) == {row.block_hash for row in rows_of("a", 3)}


def test_the_file_is_its_owners_alone(path: Path) -> None:
    file = open_file(path)
    file.begin(ABOUT, rows_of("a", 1))
    modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    file.close()
    assert modes == {path.name: 0o600, f"{path.name}-wal": 0o600}


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_what_can_be_no_journal_is_one_sentence(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    with pytest.raises(ConfigError, match=r"^journal\.path: cannot keep a journal at .*; choose a path") as caught:
        open_file(path)
    assert "\n" not in str(caught.value)


def test_blocks_without_bytes_are_remembered_in_a_bounded_number(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiered.journal.file, "ABSENT_ROWS_MAX", 10)
    monkeypatch.setattr(tiered.journal.file, "_PRUNE_EVERY", 5)
    file = open_file(path)
    file.begin(ABOUT, [])
    for n in range(10):
        rows = rows_of(f"p{n}", 4)
        file.apply([Changes(stored=rows)], pool=POOL)
        file.apply([Changes(removed=[row.block_hash for row in rows])], pool=POOL)
    left = {row.block_hash for row in file.rows()}
    file.close()
    assert len(left) <= 10 + 4
    assert {row.block_hash for row in rows_of("p9", 4)} <= left
    assert not {row.block_hash for row in rows_of("p0", 4)} & left
