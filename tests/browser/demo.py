"""The demo load as users start it: ``tiered demo --keep``, the real model, a cluster of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.integration.processes import temporary_place
from tests.support.worker_process import until
from tiered.cli.paths import models_dir

START_S: Final = 120.0
"""Three workers import torch at the same time."""

TOLD_S: Final = 600.0
"""For the whole story on a busy machine; usually a minute."""

STOP_S: Final = 30.0

_ANSWERED: Final = re.compile(r"; first token after ")
_URL: Final = re.compile(r"^dashboard at (http://\S+)$", re.MULTILINE)


class DemoProcess:
    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path, summary: Path) -> None:
        self.process = process
        self._out, self._err, self._summary = out, err, summary

    @property
    def said(self) -> str:
        return self._out.read_text()

    @property
    def url(self) -> str:
        found = _URL.search(self.said)
        return "" if found is None else found[1]

    @property
    def is_told(self) -> bool:
        """All requests are answered; the cluster stays up."""
        self._must_run()
        return "Ctrl-C stops everything" in self.said

    @property
    def n_answered(self) -> int:
        """Requests whose line is printed."""
        self._must_run()
        return len(_ANSWERED.findall(self.said))

    def wait_url(self) -> DemoProcess:
        until(lambda: self._must_run() or self.url, "the demo's cluster is up", within_s=START_S)
        return self

    def wait_told(self) -> DemoProcess:
        until(lambda: self.is_told, "the demo's story is told", within_s=TOLD_S)
        return self

    def summary(self) -> dict[str, Any]:
        """As it writes it for its users."""
        found: dict[str, Any] = json.loads(self._summary.read_text())
        return found

    def _must_run(self) -> None:
        assert self.process.poll() is None, self._err.read_text()


@contextmanager
def demo_process() -> Iterator[DemoProcess]:
    """Its cluster is up. The model is the one that this machine has already."""
    with temporary_place() as place:
        (place.directory / "models").symlink_to(models_dir())
        out, err, summary = (place.directory / name for name in ("demo.out", "demo.err", "summary.json"))
        argv = place.argv("demo", "--keep", "--summary", str(summary))
        # The engines' threads sleep while they wait for each other: beside a browser, who spins takes the core from
        # the very thread it waits for.
        env = {**place.env, "PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        with out.open("wb") as told, err.open("wb") as complained:
            process = subprocess.Popen(argv, env=env, stdout=told, stderr=complained)
        try:
            yield DemoProcess(process, out, err, summary).wait_url()
            process.send_signal(signal.SIGINT)
            assert process.wait(STOP_S) == 0, err.read_text()
        finally:
            process.kill()
            process.wait(STOP_S)
