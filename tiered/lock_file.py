"""A file that one living process has locked, with who that is in it.

The kernel lets go of the lock when the process ends, however it ends, so it never outlives its holder; what a file
system shared by several machines does, it does there too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_WORDS_BYTES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the lock; as text ``pid 4711``, with its machine where that is not ours."""

    pid: str
    machine: str

    def __str__(self) -> str:
        where = "" if self.machine in ("", os.uname().nodename) else f" on {self.machine}"
        return f"pid {self.pid or 'not known'}{where}"


class LockFile:
    """Made by :meth:`take`; ours until :meth:`release` or the end of this process. Child processes do not hold it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {os.uname().nodename}\n".encode(), 0)

    @classmethod
    def take(cls, path: Path) -> Self | Holder:
        """The lock, or who has it. Never waits.

        Errors: OSError when there can be no such file, or it is another user's.
        """
        while True:
            descriptor = os.open(path, _FLAGS, 0o600)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    raise PermissionError(errno.EPERM, f"{path.name} belongs to another user", str(path))
                holder = _try_lock(descriptor)
                if holder is not None:
                    return holder
                # Whoever held it before may have removed it while we waited at its door.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False)):
                        taken, descriptor = cls(path, descriptor), -1
                        return taken
            finally:
                if descriptor >= 0:
                    os.close(descriptor)

    def release(self) -> None:
        """Remove the file and let go. Harmless when done before."""
        if self._descriptor >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def _try_lock(descriptor: int) -> Holder | None:
    """None when it is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid, _, machine = os.pread(descriptor, _WORDS_BYTES_MAX, 0).decode(errors="replace").strip().partition(" ")
        return Holder(pid, machine)
    return None
