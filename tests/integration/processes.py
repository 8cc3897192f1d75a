"""Running the command as users do, in a place of its own, and finding every process it left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 60.0
_PLACE_VARIABLE = "TIERED_CACHE_DIR"


def until(condition: Callable[[], bool], what: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Wait for the condition; fail by name at the deadline."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Place:
    """A cache directory of its own with a short path, and the environment that names it.

    Every process started from here carries the directory's name in its environment, which is how those that were
    left behind are found, whoever their parent is by then. The server writes its title over its environment, but
    works in the directory.
    """

    directory: Path

    @property
    def env(self) -> Mapping[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
        return {**ours, _PLACE_VARIABLE: str(self.directory)}

    def run(self, *argv: str, timeout_s: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*argv), env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    @staticmethod
    def argv(*argv: str) -> list[str]:
        return [sys.executable, "-m", "tiered.cli.main", *argv]

    def running(self) -> dict[int, str]:
        """Process id and command line of every process of this place that has not ended."""
        mark = f"{_PLACE_VARIABLE}={self.directory}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                marked = mark in (entry / "environ").read_bytes().split(b"\0")
                if marked or (entry / "cwd").readlink().is_relative_to(self.directory):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(entry.name)] = command
            except OSError:  # ended meanwhile, or not ours
                continue
        return found


@contextmanager
def temporary_place() -> Iterator[Place]:
    """The directory is short because sockets live in it; what still runs at the end is killed."""
    place = Place(Path(tempfile.mkdtemp(prefix="tiered-")))
    try:
        yield place
    finally:
        for pid in place.running():
            os.kill(pid, signal.SIGKILL)
        until(lambda: not place.running(), "killed processes are gone")
        shutil.rmtree(place.directory)
