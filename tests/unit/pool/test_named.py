"""Pool files with a name: whose they are, who still uses them, and how they go."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.content import LAYOUT
from tiered.pool import named
from tiered.pool.pool import BlockPool

PAGE = mmap.PAGESIZE


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[Path]:
    """A folder in RAM, so that memory can be given back, removed at the end."""
    folder = Path("/dev/shm") / f"tiered-test-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    yield folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def make(shm: Path, *, nbytes: int = 8 * PAGE, journal: str = "/run/a.journal") -> tuple[Path, int]:
    return named.create(named.stem("w1", Path(journal)), nbytes, directory=shm)


def test_a_name_says_user_and_node_and_is_never_used_twice(shm: Path) -> None:
    (first, a), (second, b) = make(shm), make(shm)
    assert re.fullmatch(rf"tiered-pool-{os.geteuid()}-w1-[0-9a-f]{{12}}-[0-9a-f]{{16}}", first.name)
    assert first != second
    assert (first.stat().st_mode & 0o777, first.stat().st_size) == (0o600, 8 * PAGE)
    os.close(a)
    os.close(b)


def test_a_pool_in_a_named_file_keeps_what_the_file_holds(shm: Path) -> None:
    path, descriptor = make(shm, nbytes=2 * LAYOUT.block_bytes)
    os.pwrite(descriptor, b"\xab" * 10, LAYOUT.block_bytes)
    pool = BlockPool(LAYOUT, 2, descriptor=descriptor)
    assert bytes(pool.host_view(1)[:10]) == b"\xab" * 10  # type: ignore[arg-type]
    pool.host_view(0)[:3] = b"new"  # type: ignore[arg-type]
    pool.close()
    assert path.read_bytes()[:3] == b"new"


def test_a_file_is_a_leftover_once_nobody_maps_it_any_more(shm: Path) -> None:
    path, descriptor = make(shm)
    engines = mmap.mmap(descriptor, 8 * PAGE)  # holds on to what the descriptor stood for, as an engine does
    os.close(descriptor)
    assert list(named.leftovers(directory=shm)) == []
    engines[:PAGE] = b"x" * PAGE
    engines.close()
    assert [(each.path, each.nbytes) for each in named.leftovers(directory=shm)] == [(path, PAGE)]


def test_only_files_of_this_kind_and_this_user_are_leftovers(shm: Path) -> None:
    (shm / "tiered-pool-something-else").touch()
    (shm / f"tiered-pool-{os.geteuid() + 1}-w1-0123456789ab-0123456789abcdef").touch()
    (shm / f"tiered-pool-{os.geteuid()}-w1-0123456789ab-0123456789abcdef").symlink_to("/etc/passwd")
    (shm / f"tiered-pool-{os.geteuid()}-w2-0123456789ab-0123456789abcdef").mkdir()
    assert list(named.leftovers(directory=shm)) == []
    (shm / f"tiered-pool-{os.geteuid()}-w2-0123456789ab-0123456789abcdef").rmdir()


def test_the_files_of_one_journal_are_removed_and_no_others(shm: Path) -> None:
    for journal in ("/run/a.journal", "/run/a.journal", "/run/b.journal"):
        os.close(make(shm, journal=journal)[1])
    kept = sorted(shm.glob("*"))[0]
    assert named.remove_pools(Path("/run/a.journal"), but=kept.name, directory=shm) in (1, 2)
    left = {path.name for path in shm.iterdir()}
    assert kept.name in left
    assert any(f"w1-{named.stem('w1', Path('/run/b.journal')).rsplit('-', 1)[1]}" in name for name in left)


def test_an_earlier_pool_is_found_by_its_name_alone_if_it_is_ours(shm: Path) -> None:
    path, descriptor = make(shm)
    os.close(descriptor)
    found = named.EarlierPool.find(path.name, directory=shm)
    assert found is not None
    assert not found.lingering
    found.remove()
    assert not path.exists()
    for name in ("", path.name, "../etc/passwd", "tiered-pool-0-w1-x-y"):
        assert named.EarlierPool.find(name, directory=shm) is None


def test_bytes_beyond_the_end_are_not_there(shm: Path) -> None:
    path, descriptor = make(shm, nbytes=2 * PAGE)
    os.pwrite(descriptor, b"a" * 2 * PAGE, 0)
    os.close(descriptor)
    found = named.EarlierPool.find(path.name, directory=shm)
    assert found is not None
    out = memoryview(bytearray(PAGE))
    assert found.read(PAGE, out)
    assert bytes(out) == b"a" * PAGE
    assert not found.read(PAGE + 1, out)
    assert not found.read(1 << 60, out)
    path.write_bytes(b"")  # somebody cut it short: no signal, no bytes
    assert not found.read(0, out)
    found.close()
    found.close()


def test_memory_is_given_back_only_when_nobody_maps_it(shm: Path) -> None:
    path, descriptor = make(shm)
    os.pwrite(descriptor, b"a" * 8 * PAGE, 0)
    lingering = named.EarlierPool.find(path.name, directory=shm)
    assert lingering is not None
    assert lingering.lingering
    lingering.give_memory_back(0, 8 * PAGE)
    assert path.stat().st_blocks * 512 == 8 * PAGE
    lingering.close()
    os.close(descriptor)
    free = named.EarlierPool.find(path.name, directory=shm)
    assert free is not None
    free.give_memory_back(1, 3 * PAGE)  # whole pages inside alone
    assert path.stat().st_blocks * 512 == 6 * PAGE
    free.give_memory_back(0, 10)
    assert path.stat().st_blocks * 512 == 6 * PAGE
    free.close()


def test_the_lock_of_a_living_pool_is_not_taken_away_by_looking(shm: Path) -> None:
    path, descriptor = make(shm)
    assert list(named.leftovers(directory=shm)) == []
    with path.open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
