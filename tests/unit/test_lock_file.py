"""A locked file: one holder, known by name, and free as soon as its process is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tiered.lock_file import Holder, LockFile


def taken(path: Path) -> LockFile:
    lock = LockFile.take(path)
    assert isinstance(lock, LockFile)
    return lock


def test_a_second_one_is_told_who_has_it_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = taken(path)
    holder = LockFile.take(path)
    assert str(holder) == f"pid {os.getpid()}"
    first.release()
    assert not path.exists()
    first.release()  # harmless
    taken(path).release()


def test_a_holder_on_another_machine_is_named_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = taken(path)
    path.write_text("4711 elsewhere\n")
    assert str(LockFile.take(path)) == "pid 4711 on elsewhere"
    first.release()


def test_a_lock_ends_with_its_process_and_its_children_do_not_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import pathlib, subprocess, sys, time\n"
        "from tiered.lock_file import LockFile\n"
        "lock = LockFile.take(pathlib.Path(sys.argv[1]))\n"
        "child = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, close_fds=False)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    argv = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child_pid = int(process.stdout.readline())
        try:
            assert LockFile.take(path) == Holder(str(process.pid), os.uname().nodename)
            process.kill()
            process.wait(20)
            taken(path).release()
        finally:
            process.kill()
            os.kill(child_pid, signal.SIGKILL)


def test_a_path_that_cannot_be_locked_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LockFile.take(tmp_path / "nowhere" / "lock")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic link"):
        LockFile.take(tmp_path / "link")
