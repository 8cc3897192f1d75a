"""Run directories: one launcher each, and none is removed that somebody uses, wherever that is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiered.cli.run_directory import LOCK_NAME, SAME_PID_MAX, RunDirectory, take_run_directory
from tiered.errors import ConfigError


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parent of directories that we name ourselves."""
    monkeypatch.delenv("TIERED_RUN_DIR", raising=False)
    monkeypatch.setenv("TIERED_CACHE_DIR", str(tmp_path))
    return tmp_path / "run"


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


@pytest.fixture
def other() -> Iterator[Other]:
    with Other() as other:
        yield other


class Other:
    """Another process, which locks what it is told to."""

    def __enter__(self) -> Other:
        code = (
            "import pathlib, sys\n"
            "from tiered.lock_file import LockFile\n"
            "locks = []\n"
            "for line in sys.stdin:\n"
            "    locks.append(LockFile.take(pathlib.Path(line.strip())))\n"
            "    print(flush=True)\n"
        )
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def locks(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(directory / LOCK_NAME, file=self.process.stdin, flush=True)
        self.process.stdout.readline()


def take(pid: int | None = None) -> RunDirectory:
    return take_run_directory(os.getpid() if pid is None else pid, check=lambda path: None)


def test_a_directory_of_a_dead_pid_stays_while_another_process_has_it_locked(
    runs: Path, dead_pid: int, other: Other
) -> None:
    used = runs / str(dead_pid)
    other.locks(used)
    (used / "redis.sock").touch()
    left = [runs / f"{dead_pid}-2", runs / f"{dead_pid}-3"]
    for directory in left:  # one of a launcher that was killed, one from before there were locks
        (directory / "folder").mkdir(parents=True)
        (directory / "worker-1.log").touch()
    (left[0] / LOCK_NAME).touch()
    alive = runs / f"{os.getppid()}"
    alive.mkdir()
    take().leave()
    assert sorted(runs.iterdir()) == sorted([used, alive])
    assert (used / "redis.sock").exists()

    other.process.kill()
    other.process.wait()
    take().leave()
    assert list(runs.iterdir()) == [alive]


def test_a_given_directory_has_one_launcher_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Other
) -> None:
    given = tmp_path / "given"
    monkeypatch.setenv("TIERED_RUN_DIR", str(given))
    monkeypatch.setenv("TIERED_CACHE_DIR", str(tmp_path))
    other.locks(given)
    with pytest.raises(
        ConfigError, match=rf"TIERED_RUN_DIR: {given} is in use .*\(pid {other.process.pid}\); stop it"
    ):
        take()
    other.process.kill()
    other.process.wait()
    ours = take()
    (given / "worker-1.log").touch()
    ours.leave()
    assert [path.name for path in given.iterdir()] == ["worker-1.log"]


def test_launchers_of_one_pid_have_directories_of_their_own(runs: Path, dead_pid: int, other: Other) -> None:
    other.locks(runs / str(dead_pid))
    first, second = take(dead_pid), take(dead_pid)
    assert [first.path.name, second.path.name] == [f"{dead_pid}-2", f"{dead_pid}-3"]
    for number in range(4, SAME_PID_MAX + 1):
        other.locks(runs / f"{dead_pid}-{number}")
    with pytest.raises(ConfigError, match=f"in use by another cluster .*pid {other.process.pid}"):
        take(dead_pid)
    first.leave(keep=True)
    second.leave()
    assert first.path.is_dir()
    assert not second.path.exists()
    assert not (first.path / LOCK_NAME).exists()


def test_a_directory_that_cannot_be_made_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TIERED_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TIERED_RUN_DIR", str(tmp_path / "file" / "run"))
    with pytest.raises(ConfigError, match=r"TIERED_RUN_DIR: cannot use .*set it to a directory of yours"):
        take()
