"""A real worker process: started on free ports, waited for, paused, killed, stopped; its words and numbers read.

The process is forked from a server that has imported torch once, so that a test may start one in a tenth of a second;
from its command line on it runs as ``tiered-worker`` does.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.support.later_release import Spawned

START_S = 60.0
STOP_S = 10.0
_PR_SET_PDEATHSIG = 1

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["worker.app", "worker.cli", "tests.support.content"])


def until(condition: Callable[[], object], what: str, *, within_s: float = 30.0) -> None:
    """Poll until the condition holds; fail by name once the time is up."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.005)


def fork(target: Callable[..., None], *arguments: object) -> BaseProcess:
    """Run a module's function in a process of its own, which ends when the tests do. Arguments are pickled."""
    process = _forks.Process(target=_tied, args=(target, *arguments), daemon=True)
    process.start()
    return process


def _tied(target: Callable[..., None], *arguments: object) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    target(*arguments)


@dataclass(slots=True)
class WorkerProcess:
    """One life of a worker; :meth:`again` begins the next with the same command line."""

    name: str
    socket_path: str
    argv: tuple[str, ...]
    directory: Path
    process: BaseProcess

    @property
    def stdout_path(self) -> Path:
        return self.directory / f"{self.name}.out"

    @property
    def stderr_path(self) -> Path:
        return self.directory / f"{self.name}.err"

    @property
    def log(self) -> str:
        """All that its lives wrote to standard error."""
        return self.stderr_path.read_text()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def ready(self) -> bool:
        return f"worker {self.name} ready on unix://{self.socket_path}\n" in self.stdout_path.read_text()

    def wait_ready(self) -> WorkerProcess:
        until(lambda: self.ready or not self.process.is_alive(), f"{self.name} is ready", within_s=START_S)
        assert self.process.is_alive(), self.log
        return self

    def again(self, *, tree: Path | None = None, more: Sequence[str] = ()) -> WorkerProcess:
        """A new life in the place of one that has ended, of this release or of another tree's; more: arguments."""
        assert not self.process.is_alive()
        argv = [*self.argv, *more]
        return spawn_worker(self.name, argv, self.directory, socket_path=self.socket_path, tree=tree).wait_ready()

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has taken it away."""
        self.process.kill()
        self.process.join(STOP_S)
        assert self.process.exitcode is not None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, *, within_s: float = STOP_S) -> int:
        """SIGTERM; the exit code, which has to come in time."""
        self.process.terminate()
        return self.wait(within_s=within_s)

    def wait(self, *, within_s: float) -> int:
        self.process.join(within_s)
        if self.process.exitcode is None:
            os.kill(self.pid, signal.SIGUSR1)
            until(
                lambda: "most recent call" in self.log or self.process.exitcode is not None, "it says where it hangs"
            )
            raise AssertionError(f"{self.name} still runs after {within_s:g} s: {self.log}")
        return self.process.exitcode

    def end(self) -> None:
        """Whatever state it is in: gone afterwards."""
        if self.process.is_alive():
            self.kill()

    def peak_bytes(self) -> int:
        """The most that the process has occupied of the machine's memory so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def spawn_worker(
    name: str,
    argv: Sequence[str],
    directory: Path,
    *,
    socket_path: str,
    skew_s: float = 0.0,
    tree: Path | None = None,
) -> WorkerProcess:
    """Start a process that becomes a worker; it is not waited for. skew_s: by how much its clock of day is wrong.

    tree: another release's, whose packages it runs.
    """
    out, err = directory / f"{name}.out", directory / f"{name}.err"
    out.write_bytes(b"")
    full = ["--node", name, "--socket", socket_path, *argv]
    if tree is not None:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TIERED_")}
        spawned = cast(BaseProcess, Spawned(tree, ["-m", "worker", *full], environ, out=out, err=err))
        return WorkerProcess(name, socket_path, tuple(argv), directory, spawned)
    process = fork(_become_worker, full, str(out), str(err), skew_s)
    return WorkerProcess(name, socket_path, tuple(argv), directory, process)


def _become_worker(argv: list[str], out: str, err: str, skew_s: float) -> None:
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + skew_s
    time.time_ns = lambda: right_ns() + round(skew_s * 1e9)
    for name in [name for name in os.environ if name.startswith("TIERED_")]:
        del os.environ[name]
    for path, descriptor in ((out, 1), (err, 2)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    faulthandler.register(signal.SIGUSR1)
    sys.argv = ["tiered-worker", *argv]
    from worker.cli import main

    main()


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """SIGSTOP for the time of the ``with``."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """GET /metrics as {(sample name, label values in order of their names): value}."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5.0) as answer:
        text = answer.read().decode()
    samples: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[(sample.name, *(value for _, value in sorted(sample.labels.items())))] = sample.value
    return samples
