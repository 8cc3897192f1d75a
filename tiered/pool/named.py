"""A pool's memory as a file in RAM with a name, so that the worker's next life finds the bytes of this one.

Owns the names, the locks and the reading of an earlier file; knows nothing of tensors, nor of what a block holds.

The descriptor that engines get is the one that holds the lock, and a lock of this kind (flock) lasts until the last
process has closed and unmapped it. So a locked file is one whose bytes somebody still sees, worker or engine, and one
that nobody has locked is left over from processes that are gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SHM_DIR: Final = Path("/dev/shm")
_NAME: Final = re.compile(r"tiered-pool-(?P<uid>\d+)-(?P<node>.+)-(?P<of>[0-9a-f]{12})-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A pool file that no process has locked."""

    path: Path
    nbytes: int


def stem(node: str, journal: Path) -> str:
    """What the names of a node's pool files begin with: user, node, and which journal speaks of them."""
    return f"tiered-pool-{os.geteuid()}-{node}-{_digest(journal)}"


def create(stem: str, nbytes: int, *, directory: Path = SHM_DIR) -> tuple[Path, int]:
    """A new file of this size under a name never used before, locked. No memory is taken yet.

    Errors: OSError.
    """
    path = directory / f"{stem}-{secrets.token_hex(8)}"
    unnamed = path.with_name(f".{path.name}")
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, nbytes)
        unnamed.rename(path)  # once it is locked: nobody ever takes it for one that was left behind
    except BaseException:
        os.close(descriptor)
        unnamed.unlink(missing_ok=True)
        raise
    return path, descriptor


def room_bytes(directory: Path = SHM_DIR) -> int:
    """What the file system would still take. Errors: OSError."""
    about = os.statvfs(directory)
    return about.f_bavail * about.f_frsize


class EarlierPool:
    """The pool file of an earlier life, to be read and then removed.

    It is locked as soon as nobody else has it, so that nobody takes it for one that was left behind.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._memory: mmap.mmap | None = None
        self.nbytes = os.fstat(descriptor).st_size
        self.resident_bytes = os.fstat(descriptor).st_blocks * 512
        self._locked = _try_lock(descriptor)

    @classmethod
    def find(cls, name: str, *, directory: Path = SHM_DIR) -> EarlierPool | None:
        """None when there is no such file of ours."""
        if not _NAME.fullmatch(name):
            return None
        path = directory / name
        descriptor = _open_ours(path)
        return None if descriptor is None else cls(path, descriptor)

    @property
    def lingering(self) -> bool:
        """Whether a process of that life still maps it, and may even be writing: its memory is left alone then."""
        self._locked = self._locked or _try_lock(self._descriptor)
        return not self._locked

    def read(self, offset: int, out: memoryview) -> bool:
        """Copy bytes into private memory; False when they are not all there."""
        return offset + out.nbytes <= self.nbytes and os.preadv(self._descriptor, [out], offset) == out.nbytes

    def give_memory_back(self, offset: int, nbytes: int) -> None:
        """Of bytes that were copied, so that old and new pool need not fit the machine together."""
        if self.lingering:
            return
        page = mmap.PAGESIZE
        start, end = -(-offset // page) * page, min(offset + nbytes, self.nbytes) // page * page
        if start < end:
            # Where the system will not, the memory comes back with the file.
            with contextlib.suppress(OSError):
                if self._memory is None:
                    self._memory = mmap.mmap(self._descriptor, self.nbytes)
                self._memory.madvise(mmap.MADV_REMOVE, start, end - start)

    def remove(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Harmless when done before."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def remove_pools(journal: Path, *, but: str = "", directory: Path = SHM_DIR) -> int:
    """Remove the files of a journal whose worker is the caller, or is gone; returns how many. but: one to leave."""
    n_removed = 0
    for path in directory.glob(f"tiered-pool-{os.geteuid()}-*-{_digest(journal)}-*"):
        if path.name != but and _NAME.fullmatch(path.name):
            path.unlink(missing_ok=True)
            n_removed += 1
    return n_removed


def leftovers(*, directory: Path = SHM_DIR) -> Iterator[Leftover]:
    """This user's pool files that no process has locked, in order of their names."""
    for path in sorted(directory.glob(f"tiered-pool-{os.geteuid()}-*")):
        if not _NAME.fullmatch(path.name):
            continue
        descriptor = _open_ours(path)
        if descriptor is None:
            continue
        try:
            if _try_lock(descriptor):
                yield Leftover(path, os.fstat(descriptor).st_blocks * 512)
        finally:
            os.close(descriptor)


def _digest(journal: Path) -> str:
    return hashlib.sha256(os.fsencode(journal.absolute())).hexdigest()[:12]


def _open_ours(path: Path) -> int | None:
    """A regular file of this user's, opened; None for anything else."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
            return descriptor
        os.close(descriptor)
    return None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
