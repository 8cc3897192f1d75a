"""The right to one journal, held by one living process: a locked file beside it.

The kernel lets go of the lock when the process ends, however it ends, so a claim never outlives its holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from tiered.errors import ConfigError

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Claim:
    """Taken on construction. Errors: ConfigError when another process holds it, or the path cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _lock(path)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Remove the file and let go. Harmless when done before."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def claim_path(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}.lock")


def _lock(path: Path) -> int:
    """The locked file of this name. Whoever held it before may have removed it while we waited at its door."""
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "not known"
            os.close(descriptor)
            raise ConfigError(
                f"journal.path: {path.with_suffix('')} is in use by another worker (pid {holder}); stop it, or give "
                "each worker a node.name or a journal.path of its own",
                field="journal.path",
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False)):
                return descriptor
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, _FLAGS, 0o600)
    except OSError as error:
        raise ConfigError(
            f"journal.path: cannot keep a journal in {path.parent}: {error.strerror}; choose a path in a directory "
            "of yours that exists and may be written, or set journal.mode to off",
            field="journal.path",
        ) from None
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise ConfigError(
            f"journal.path: {path} belongs to another user; choose a path in a directory of yours",
            field="journal.path",
        )
    return descriptor
