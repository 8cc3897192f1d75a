"""A real Prometheus, and its promtool. Run by ``make test-monitoring``.

What is on the PATH is used; else Debian's package is fetched and unpacked into build/, without installing it; else
the tests are skipped and say what is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests.monitoring.prometheus import Tools

UNPACKED: Final = Path(__file__).parents[2] / "build" / "prometheus"
FETCH_S: Final = 300.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.monitoring)
            item.add_marker(pytest.mark.timeout(300))


def _found() -> Tools | None:
    for path in (None, str(UNPACKED / "usr" / "bin")):
        server, promtool = shutil.which("prometheus", path=path), shutil.which("promtool", path=path)
        if server and promtool:
            return Tools(server, promtool)
    return None


def _fetch() -> None:
    """Not installed, since that would start a server of the machine's own."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return
    with tempfile.TemporaryDirectory() as directory:
        for command in (["apt-get", "update"], ["apt-get", "download", "prometheus"]):
            subprocess.run(command, cwd=directory, timeout=FETCH_S, check=False, capture_output=True)
        for package in Path(directory).glob("prometheus_*.deb"):
            UNPACKED.mkdir(parents=True, exist_ok=True)
            subprocess.run(["dpkg", "-x", package, UNPACKED], timeout=FETCH_S, check=True, capture_output=True)


@pytest.fixture(scope="session")
def tools() -> Tools:
    found = _found()
    if found is None:
        _fetch()
        found = _found()
    if found is None:
        pytest.skip("needs prometheus and promtool: apt-get install prometheus, or put both on the PATH")
    return found
