"""``tiered serve`` as users start it: a process of its own, waited for, asked, stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.worker_process import until
from tiered.cli.process import tie_to_us

START_S = 90.0
"""Importing torch and transformers on a busy machine."""


class ServeProcess:
    def __init__(self, directory: Path, *argv: str, env: dict[str, str] | None = None) -> None:
        self._out, self._err = directory / "serve.out", directory / "serve.err"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tiered.cli.main", "serve", *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**clean, "OMP_NUM_THREADS": "1", **(env or {})},
                preexec_fn=tie_to_us(),
            )

    @property
    def said(self) -> str:
        return self._out.read_text()

    @property
    def log(self) -> str:
        return self._err.read_text()

    @property
    def url(self) -> str:
        return self.said.strip().rpartition(" ready on ")[2]

    def wait_ready(self) -> ServeProcess:
        until(lambda: " ready on " in self.said or self.ended, "it is ready", within_s=START_S)
        assert not self.ended, self.log
        return self

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def exit_code(self, *, within_s: float = START_S) -> int:
        """Of its own end, which has to come in time."""
        return self.process.wait(within_s)

    def complete(self, prompt: object, **fields: Any) -> dict[str, Any]:
        body = {"model": self.said.split()[2], "prompt": prompt, "temperature": 0, **fields}
        response = httpx.post(f"{self.url}/v1/completions", json=body, timeout=60.0)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}/health", timeout=10.0).json()
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def serve_process(directory: Path, *argv: str) -> Iterator[ServeProcess]:
    """Ready, and killed at the end."""
    server = ServeProcess(directory, *argv)
    try:
        yield server.wait_ready()
    finally:
        server.end()
