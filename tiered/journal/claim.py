"""The right to one journal, held by one living process: a locked file beside it."""

from __future__ import annotations

from pathlib import Path

from tiered.errors import ConfigError
from tiered.lock_file import Holder, LockFile


class Claim:
    """Taken on construction. Errors: ConfigError when another process holds it, or the path cannot be used."""

    def __init__(self, path: Path) -> None:
        try:
            taken = LockFile.take(path)
        except OSError as error:
            raise ConfigError(
                f"journal.path: cannot keep a journal in {path.parent}: {error.strerror}; choose a path in a "
                "directory of yours that exists and may be written, or set journal.mode to off",
                field="journal.path",
            ) from None
        if isinstance(taken, Holder):
            raise ConfigError(
                f"journal.path: {path.with_suffix('')} is in use by another worker ({taken}); stop it, or give "
                "each worker a node.name or a journal.path of its own",
                field="journal.path",
            )
        self._lock = taken

    def release(self) -> None:
        """Remove the file and let go. Harmless when done before."""
        self._lock.release()


def claim_path(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}.lock")
