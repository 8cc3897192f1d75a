"""What ``make dist`` has made, installed as its users do, into environments of their own."""

from __future__ import annotations

import os
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

DIST = Path(__file__).resolve().parents[2] / "build" / "dist"
INSTALL_S = 200.0
RUN_S = 60.0


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it."""

    home: Path

    def run(self, program: str, *argv: str, timeout_s: float = RUN_S) -> subprocess.CompletedProcess[str]:
        """A program of the environment, far from the sources."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("TIERED_", "PYTHON"))}
        command = [str(self.home / "bin" / program), *argv]
        return subprocess.run(
            command, cwd=self.home, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def python(self, code: str) -> str:
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout


def built(pattern: str) -> Path:
    """The one file of that kind; skips where nothing has been built."""
    found = sorted(DIST.glob(pattern))
    if not found:
        pytest.skip("nothing is built: make dist")
    assert len(found) == 1, found
    return found[0]


def installed(home: Path, extras: str = "") -> Installed:
    """Needs a package index."""
    venv.create(home, with_pip=True)
    made = Installed(home)
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    done = made.run("python", *pip, f"{built('*.whl')}{extras}", timeout_s=INSTALL_S)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Without an extra, as it goes into an engine's environment; that brings its own torch."""
    return installed(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="session")
def with_server(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed(tmp_path_factory.mktemp("server"), "[server]")
