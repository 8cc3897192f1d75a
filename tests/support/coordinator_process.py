"""A real coordinator process on a free port: started, waited for, killed, stopped; its words and answers read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.later_release import THIS_TREE, popen_in
from tests.support.worker_process import until
from tiered.cluster.embedded import EmbeddedServer

START_S = 30.0
STOP_S = 10.0
_READY = re.compile(r"^coordinator ready on (http://\S+)$", re.MULTILINE)


class CoordinatorProcess:
    """One life of one replica. settings: KEY=VALUE. tree: another release's, whose packages it runs."""

    def __init__(
        self,
        server: EmbeddedServer,
        namespace: str,
        directory: Path,
        name: str,
        *settings: str,
        tree: Path = THIS_TREE,
    ) -> None:
        self._out, self._err = directory / f"{name}.out", directory / f"{name}.err"
        argv = ["--port", "0", "--redis-url", server.url, "--namespace", namespace]
        for setting in settings:
            argv += ["--set", setting]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TIERED_")}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = popen_in(tree, ["-m", "coordinator", *argv], environ, stdout=out, stderr=err)

    @property
    def log(self) -> str:
        return self._err.read_text()

    @property
    def url(self) -> str:
        said = _READY.search(self._out.read_text())
        return "" if said is None else said[1]

    def wait_ready(self) -> CoordinatorProcess:
        until(lambda: self.url or self.process.poll() is not None, "the coordinator is ready", within_s=START_S)
        assert self.process.poll() is None, self.log
        return self

    def get(self, path: str) -> Any:
        answer = httpx.get(self.url + path, timeout=5.0, trust_env=False)
        answer.raise_for_status()
        return answer.json()

    @property
    def leads(self) -> bool:
        return bool(self.get("/v1/leader")["is_leader"])

    def kill(self) -> None:
        """SIGKILL: it gets no chance to resign."""
        self.process.kill()
        self.process.wait(STOP_S)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(STOP_S)


@contextmanager
def coordinators(
    n_replicas: int, server: EmbeddedServer, namespace: str, directory: Path, *settings: str
) -> Iterator[list[CoordinatorProcess]]:
    """Started side by side, and ready; killed at the end, and none has written a stack into its log."""
    started = [CoordinatorProcess(server, namespace, directory, f"c{i + 1}", *settings) for i in range(n_replicas)]
    try:
        for replica in started:
            replica.wait_ready()
        yield started
        assert not [replica.log for replica in started if "Traceback" in replica.log]
    finally:
        for replica in started:
            replica.kill()
