"""The directory with the sockets, logs and journals of one cluster, locked by its launcher as long as that runs.

A process id says nothing of a launcher on another machine or in a container that shares the directory's parent; the
lock does. What lies in a directory is its processes' business.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tiered.cli.cluster_file import pid_alive
from tiered.cli.paths import run_dir, runs_dir
from tiered.errors import ConfigError
from tiered.lock_file import Holder, LockFile
from tiered.pool.named import remove_pools

LOCK_NAME: Final = "lock"
SAME_PID_MAX: Final = 16
"""Launchers that share a parent directory and have one process id: in containers all are 1 or so."""

_TRIES: Final = 3


class RunDirectory:
    """Ours until :meth:`leave`. From :func:`take_run_directory`."""

    def __init__(self, lock: LockFile, *, is_given: bool) -> None:
        self.path = lock.path.parent
        self._lock = lock
        self._is_given = is_given

    def leave(self, *, keep: bool = False) -> None:
        """Let go of it, and remove it unless the user named it or keep says that its logs are still to be read."""
        if keep or self._is_given:
            self._lock.release()
        else:
            _remove(self._lock)


def take_run_directory(pid: int, *, check: Callable[[Path], None]) -> RunDirectory:
    """Make and lock the one that TIERED_RUN_DIR names, or one of our own; nothing in it is touched.

    check: raises for a path that does not suit.
    Errors: ConfigError naming who uses it, or why it cannot be used.
    """
    _remove_those_of_the_dead()
    is_given = bool(os.environ.get("TIERED_RUN_DIR"))
    path = run_dir(pid).absolute()
    others = [] if is_given else [path.with_name(f"{path.name}-{n}") for n in range(2, SAME_PID_MAX + 1)]
    for candidate in (path, *others):
        check(candidate)
        taken = _lock(candidate)
        if isinstance(taken, LockFile):
            return RunDirectory(taken, is_given=is_given)
    raise ConfigError(
        f"TIERED_RUN_DIR: {path} is in use by another cluster ({taken}); stop it, or set TIERED_RUN_DIR to another "
        "directory",
        field="run_dir",
    )


def _lock(directory: Path) -> LockFile | Holder:
    try:
        # Another machine, where this process id is a dead one's, may remove the new directory before it is locked.
        for _ in range(_TRIES - 1):
            with contextlib.suppress(FileNotFoundError):
                return _make_and_lock(directory)
        return _make_and_lock(directory)
    except OSError as error:
        raise ConfigError(
            f"TIERED_RUN_DIR: cannot use {directory}: {error.strerror}; set it to a directory of yours",
            field="run_dir",
        ) from None


def _make_and_lock(directory: Path) -> LockFile | Holder:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return LockFile.take(directory / LOCK_NAME)


def _remove_those_of_the_dead() -> None:
    """Directories of launchers that were killed, or that failed and left their logs to be read."""
    for directory in runs_dir().glob("*"):
        pid = directory.name.partition("-")[0]
        if pid.isdecimal() and not pid_alive(int(pid)):
            with contextlib.suppress(OSError):  # another user's, or one that cannot be locked
                taken = LockFile.take(directory / LOCK_NAME)
                if isinstance(taken, LockFile):
                    _remove(taken)


def _remove(lock: LockFile) -> None:
    """With the memory that its workers' journals speak of, if they were killed: nobody will look for it again.

    The lock goes last: who makes a directory of this name meanwhile finds it locked, and loses nothing.
    """
    directory = lock.path.parent
    for path in directory.glob("*"):
        if path.suffix == ".journal":
            remove_pools(path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path != lock.path:
            with contextlib.suppress(OSError):
                path.unlink()
    lock.release()
    with contextlib.suppress(OSError):  # somebody has it anew
        directory.rmdir()
