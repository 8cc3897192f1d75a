"""The pool of a new life: where its memory is, and what it takes over, also where the machine has too little."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiered.core.adopt
import worker.adoption
from tests.support.content import LAYOUT, hashes_of, prompt, right_bytes
from tests.unit.core.builders import RED
from tiered.codec.frame import checksum_of
from tiered.config import PoolSettings
from tiered.core.core import CacheCore
from tiered.core.invariants import check_core
from tiered.core.options import core_options
from tiered.errors import ConfigError
from tiered.journal.journal import Journal
from tiered.journal.rows import ROOT, JournalRow
from tiered.pool import named
from worker.adoption import Earlier, Made, make_pool

SIZE = LAYOUT.block_bytes
HASHES = hashes_of(prompt(1, 4))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    journal = tmp_path / "tiered-w1.journal"
    yield journal
    named.remove_pools(journal)


def files(path: Path) -> list[str]:
    return sorted(each.name for each in named.SHM_DIR.glob(f"{named.stem('w1', path)}-*"))


def live(path: Path, *, n_blocks: int = 8, stopping: bool = False, device: str = "cpu") -> Made:
    """One life: its pool is made, and it ends as if killed, keeping all."""
    journal = Journal(path, mode="batched", node="w1")
    stop = threading.Event()
    if stopping:
        stop.set()

    def new_core() -> CacheCore:
        settings = PoolSettings(bytes=n_blocks * SIZE)
        return CacheCore(core_options(settings, LAYOUT, n_blocks, lower_tier=False), n_blocks)

    try:
        earlier, stem = Earlier.of(journal), named.stem("w1", path)
        return make_pool(journal, earlier, new_core, LAYOUT, n_blocks, device=device, stem=stem, stopping=stop)
    finally:
        journal.close(keep=True)


def earlier_life(path: Path) -> str:
    """Leaves a pool with four good blocks behind, and nobody who maps it; returns the file's name."""
    pool_path, descriptor = named.create(named.stem("w1", path), 8 * SIZE)
    rows = []
    for depth, block_hash in enumerate(HASHES):
        content = right_bytes(block_hash, SIZE)
        os.pwrite(descriptor, content, (5 - depth) * SIZE)
        parent, checksum = HASHES[depth - 1] if depth else ROOT, checksum_of(memoryview(content))
        rows.append(JournalRow(block_hash, parent, b"s" * 32, (RED,), depth, slot=5 - depth, checksum=checksum))
    os.close(descriptor)
    journal = Journal(path, mode="batched", node="w1")
    journal.begin(layout=LAYOUT.describe(), pool=pool_path.name, rows=rows)
    journal.close(keep=True)
    return pool_path.name


def adopted(made: Made) -> int:
    """How many of the four are there, each with every byte right."""
    check_core(made.core)
    run = made.core.index.match(HASHES)
    for block_hash, block_id in zip(HASHES, run, strict=False):
        assert made.pool.host_view(block_id) == right_bytes(block_hash, SIZE)
    return len(run)


def test_the_bytes_move_into_a_file_of_this_life_and_the_old_one_goes(path: Path) -> None:
    before = earlier_life(path)
    made = live(path)
    assert adopted(made) == 4
    assert files(path) == [made.name] != [before]
    again = live(path)
    assert adopted(again) == 4
    assert files(path) == [again.name]


def test_files_of_lives_that_never_got_to_their_journal_go_too(path: Path) -> None:
    earlier_life(path)
    os.close(named.create(named.stem("w1", path), SIZE)[1])
    made = live(path)
    assert files(path) == [made.name]


def test_a_pool_that_the_file_system_has_no_room_for_lives_without_a_name_and_adopts_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    earlier_life(path)
    monkeypatch.setattr(named, "room_bytes", lambda: 100)  # four blocks that come back do not make it eight
    made = live(path)
    assert (adopted(made), made.name, files(path)) == (4, "", [])
    assert "will not outlive this process" in caplog.text
    monkeypatch.undo()
    assert adopted(live(path)) == 0


def test_the_memory_of_the_old_pool_counts_as_room_for_the_new(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier_life(path)
    monkeypatch.setattr(named, "room_bytes", lambda: 4 * SIZE)
    made = live(path)
    assert (adopted(made), bool(made.name)) == (4, True)


def test_room_that_somebody_else_took_meanwhile_costs_the_blocks_and_not_the_worker(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    earlier_life(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(worker.adoption.os, "posix_fallocate", full)
    made = live(path)
    assert (adopted(made), made.name, files(path)) == (0, "", [])
    assert "No space left on device" in caplog.text


def test_a_pool_that_cannot_be_made_leaves_the_earlier_one_for_the_next_try(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = earlier_life(path)

    def broken(*_: object, **__: object) -> None:
        raise ConfigError("pool.bytes: no")

    monkeypatch.setattr(worker.adoption, "BlockPool", broken)
    with pytest.raises(ConfigError):
        live(path)
    assert files(path) == [before]
    monkeypatch.undo()
    assert adopted(live(path)) == 0  # its memory went to the pool that could not be; there is a hole where it was


def test_a_smaller_pool_adopts_what_fits_and_a_larger_one_all(path: Path) -> None:
    earlier_life(path)
    assert adopted(live(path, n_blocks=2)) == 2
    earlier_life(path)
    assert adopted(live(path, n_blocks=50)) == 4


def test_a_worker_that_is_told_to_stop_adopts_no_more(path: Path) -> None:
    earlier_life(path)
    made = live(path, stopping=True)
    assert (adopted(made), made.left["time"]) == (0, 4)


def test_slots_beyond_the_file_are_left(path: Path) -> None:
    earlier_life(path)
    journal = Journal(path, mode="batched", node="w1")
    about, rows = journal.earlier()
    wild = [replace(row, slot=(row.slot or 0) + (1 << 40)) for row in rows]
    journal.begin(layout=about.layout, pool=about.pool, rows=wild)
    journal.close(keep=True)
    made = live(path)
    assert (adopted(made), made.left["corrupt"]) == (0, 4)


def test_on_a_device_nothing_is_adopted_and_what_was_known_may_still_be_warmed(path: Path) -> None:
    earlier_life(path)
    made = live(path, device="meta")  # any that is not host memory
    assert (len(made.core.index), made.name, len(made.rows), files(path)) == (0, "", 4, [])


def test_a_row_whose_removal_was_lost_takes_nothing_from_the_block_that_has_its_slot_now(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiered.core.adopt, "BATCH_BLOCKS", 1)
    earlier_life(path)
    journal = Journal(path, mode="batched", node="w1")
    about, rows = journal.earlier()
    [first] = [row for row in rows if row.depth == 0]
    [other] = hashes_of(prompt(2, 1))
    stale = replace(first, block_hash=other, checksum=bytes(16), touched=9)
    journal.begin(layout=about.layout, pool=about.pool, rows=[stale, *rows])
    journal.close(keep=True)
    made = live(path)
    assert (adopted(made), made.left["corrupt"]) == (4, 1)


def test_what_is_not_adopted_makes_room_for_the_rest_of_the_new_pool(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old and new pool fill the file system each on its own, and only part of the old one is adopted."""
    earlier_life(path)
    before = os.statvfs(named.SHM_DIR).f_bavail
    monkeypatch.setattr(worker.adoption, "ADOPT_S", 0.0)
    given: list[int] = []
    fallocate = os.posix_fallocate

    def allocate(descriptor: int, offset: int, nbytes: int) -> None:
        given.append(os.statvfs(named.SHM_DIR).f_bavail - before)
        fallocate(descriptor, offset, nbytes)

    monkeypatch.setattr(worker.adoption.os, "posix_fallocate", allocate)
    made = live(path)
    assert (adopted(made), bool(made.name)) == (0, True)
    assert given[0] > 0
