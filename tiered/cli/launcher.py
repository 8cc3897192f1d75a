"""A whole cluster on one machine: embedded server, coordinators, some workers, each a process of its own.

It owns the order of starting and stopping, the ports, the run directory and the cluster's secret. What the
services do, and whether their settings are good, it leaves to them: the last sentence of one that refuses
to start is passed on.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tiered.addresses import SOCKET_PATH_BYTES_MAX
from tiered.cli.cluster_file import (
    ClusterState,
    WorkerEntry,
    read_cluster_file,
    remove_cluster_file,
    write_cluster_file,
)
from tiered.cli.embedded import LocalServer, partitions_asked
from tiered.cli.output import progress
from tiered.cli.overrides import Overrides, as_environment, as_flags
from tiered.cli.paths import run_dir
from tiered.cli.ports import HOST, choose_ports, free_ports
from tiered.cli.process import Child, uninterrupted
from tiered.cli.redis_check import check_redis
from tiered.cli.run_directory import RunDirectory, take_run_directory
from tiered.cli.supervise import Service, Supervisor
from tiered.errors import ConfigError

COORDINATOR_START_S: Final = 60.0
WORKER_START_S: Final = 120.0  # importing torch from a cold disk takes most of it

# What stop() waits for each kind before it kills; together below the ten seconds that orchestrators commonly give.
WORKER_GRACE_S: Final = 4.0
COORDINATOR_GRACE_S: Final = 2.0
SERVER_GRACE_S: Final = 2.0

POLL_S: Final = 0.1
WORKERS_MAX: Final = 64
COORDINATORS_MAX: Final = 16
WORKER_PREFIX: Final = "TIERED_WORKER_"
COORDINATOR_PREFIX: Final = "TIERED_COORDINATOR_"
SECRET_VARIABLE: Final = f"{WORKER_PREFIX}CLUSTER__SECRET"
COORDINATOR_SECRET_VARIABLE: Final = f"{COORDINATOR_PREFIX}CLUSTER__SECRET"
FILE: Final = "_FILE"
"""After a variable's name: of the file that holds its value."""
_COORDINATOR_SECRETS: Final = (COORDINATOR_SECRET_VARIABLE, COORDINATOR_SECRET_VARIABLE + FILE)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What to start. A port of 0 means any free one; without redis_url an embedded server is started.

    port: of the first coordinator; further ones take any free port.
    """

    n_workers: int = 3
    n_coordinators: int = 1
    port: int = 0
    peer_port_base: int = 0
    metrics_port_base: int = 0
    hot_bytes: int = 256 << 20
    redis_bytes: int = 1 << 30
    redis_url: str | None = None
    namespace: str = "tiered"
    overrides: Overrides = field(default_factory=Overrides)


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """One worker of the cluster and where it is reached."""

    name: str
    socket_path: Path
    peer_port: int
    metrics_port: int
    child: Child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def alive(self) -> bool:
        return self.child.alive

    def kill(self) -> None:
        """SIGKILL: the worker gets no chance to say goodbye."""
        self.child.kill()


class LocalCluster:
    """Started with :meth:`start` or ``with``; stopped in reverse order. Use it from the main thread.

    Errors: ConfigError when an asked-for port is taken, Redis cannot be reached, or a process does not get
    ready; whatever was started is stopped then.
    """

    def __init__(self, plan: ClusterPlan, *, say: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.run_dir = run_dir(os.getpid()).absolute()
        self.redis_url = plan.redis_url or ""
        self.coordinator_url = ""
        self.workers: tuple[LocalWorker, ...] = ()
        self.announced = False
        """Whether the file that other commands read names this cluster; the first one on a machine wins."""
        self._say = say or _say_to_stderr
        self._run_directory: RunDirectory | None = None
        self._server: LocalServer | None = None
        self.coordinator_urls: tuple[str, ...] = ()
        self._coordinators: tuple[Child, ...] = ()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def namespace(self) -> str:
        return self.plan.namespace

    @property
    def services(self) -> tuple[Service, ...]:
        """Every process, in the order of starting."""
        servers: list[Service] = [] if self._server is None else [self._server]
        return (*servers, *self._coordinators, *(worker.child for worker in self.workers))

    def start(self) -> None:
        """Check, start everything, wait until all are ready."""
        ports, peer_ports, metrics_ports = self._choose_ports()
        check_redis(url=self.plan.redis_url, namespace=self.namespace)
        self._run_directory = take_run_directory(os.getpid(), check=self._check_socket_paths)
        self.run_dir = self._run_directory.path
        try:
            if self.plan.redis_url is None:
                self._server = LocalServer(
                    self.run_dir,
                    capacity_bytes=self.plan.redis_bytes,
                    namespace=self.namespace,
                    partitions=partitions_asked(self.plan.overrides, os.environ),
                )
                self._server.spawn()
                self.redis_url = self._server.url
            env = self._environment()
            self.coordinator_urls = tuple(f"http://{HOST}:{port}" for port in ports)
            self.coordinator_url = self.coordinator_urls[0]
            self._coordinators = tuple(self._coordinator_child(i, port, env) for i, port in enumerate(ports))
            self.workers = tuple(
                self._worker(f"worker-{index + 1}", peer_port, metrics_port, env)
                for index, (peer_port, metrics_port) in enumerate(zip(peer_ports, metrics_ports, strict=True))
            )
            # All are started before any is waited for: they need only Redis, and importing takes seconds.
            workers = [worker.child for worker in self.workers]
            for child in (*self._coordinators, *workers):
                child.spawn()
            n_coordinators = len(self._coordinators)
            what = "the coordinator" if n_coordinators == 1 else f"{n_coordinators} coordinators"
            _await_ready(self._coordinators, f"starting {what}", COORDINATOR_START_S)
            self.coordinator_urls = tuple(child.ready_words for child in self._coordinators)  # https with TLS
            self.coordinator_url = self.coordinator_urls[0]
            _await_ready(workers, f"starting {len(workers)} workers", WORKER_START_S)
            self._announce()
        except KeyboardInterrupt:
            self.stop()
            raise
        except BaseException:
            with uninterrupted():
                self._stop_processes()
                self._run_directory.leave(keep=True)  # the sentence we pass on may point to the logs
            raise

    def stop(self) -> None:
        """Stop in reverse order within a bounded time. A second Ctrl-C does not interrupt it."""
        with uninterrupted():
            remove_cluster_file(os.getpid())
            self._stop_processes()
            if self._run_directory is not None:
                self._run_directory.leave()
                self._run_directory = None

    def supervise(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Start again what dies, until told to end or interrupted."""
        supervisor = Supervisor(self.services, say=self._say, now=time.monotonic())
        while not until():
            supervisor.look(time.monotonic())
            time.sleep(POLL_S)

    def _choose_ports(self) -> tuple[list[int], list[int], list[int]]:
        plan, count = self.plan, self.plan.n_workers
        if not 1 <= count <= WORKERS_MAX:
            raise ConfigError(f"--workers: {count} is not between 1 and {WORKERS_MAX}", field="workers")
        n_coordinators = plan.n_coordinators
        if not 1 <= n_coordinators <= COORDINATORS_MAX:
            raise ConfigError(
                f"--coordinators: {n_coordinators} is not between 1 and {COORDINATORS_MAX}", field="coordinators"
            )
        [port] = choose_ports(1, base=plan.port, flag="--port")
        peer_ports = choose_ports(count, base=plan.peer_port_base, flag="--peer-port-base")
        metrics_ports = choose_ports(count, base=plan.metrics_port_base, flag="--metrics-port-base")
        asked = {port, *peer_ports, *metrics_ports}
        if len(asked) != 1 + 2 * count:
            raise ConfigError(
                "--port, --peer-port-base and --metrics-port-base: the ranges overlap; a range is as long as there "
                "are workers",
                field="peer_port_base",
            )
        others = [free for free in free_ports(n_coordinators - 1 + len(asked)) if free not in asked]
        return [port, *others[: n_coordinators - 1]], peer_ports, metrics_ports

    def _check_socket_paths(self, directory: Path) -> None:
        longest = len(os.fsencode(directory / f"worker-{self.plan.n_workers}.sock"))
        if longest > SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"TIERED_RUN_DIR: a socket in {directory} would have a path of {longest} bytes, the system allows "
                f"{SOCKET_PATH_BYTES_MAX}; set TIERED_RUN_DIR to a shorter directory, such as /tmp/tiered",
                field="run_dir",
            )

    def _environment(self) -> dict[str, str]:
        """What may hold a secret goes this way: every user of the machine can read command lines."""
        return {
            **{name: value for name, value in os.environ.items() if name not in _COORDINATOR_SECRETS},
            **self._secrets(),
            f"{WORKER_PREFIX}REDIS__URL": self.redis_url,
            f"{COORDINATOR_PREFIX}REDIS__URL": self.redis_url,
            **as_environment(self.plan.overrides.worker, prefix=WORKER_PREFIX),
            **as_environment(self.plan.overrides.coordinator, prefix=COORDINATOR_PREFIX),
        }

    def _secrets(self) -> dict[str, str]:
        """The workers' secret, or the file with it that they were given. The coordinator asks them why, so it has the
        same, unless it was given one of its own."""
        own, workers = self.plan.overrides.coordinator, self.plan.overrides.worker
        given = workers.get("cluster.secret") or os.environ.get(SECRET_VARIABLE)
        file = workers.get("cluster.secret_file") or os.environ.get(SECRET_VARIABLE + FILE)
        found: dict[str, str] = {}
        if file and not given:
            found[COORDINATOR_SECRET_VARIABLE + FILE] = file
        else:
            secret = given or secrets.token_urlsafe(32)
            found |= {SECRET_VARIABLE: secret, COORDINATOR_SECRET_VARIABLE: secret}
        if own.keys() & {"cluster.secret", "cluster.secret_file"}:
            return {name: value for name, value in found.items() if name not in _COORDINATOR_SECRETS}
        return found

    def _socket_path(self, name: str) -> Path:
        return self.run_dir / f"{name}.sock"

    def _coordinator_child(self, index: int, port: int, env: dict[str, str]) -> Child:
        argv = [sys.executable, "-m", "coordinator", "--host", HOST, "--port", str(port)]
        argv += ["--namespace", self.namespace, *as_flags(self.plan.overrides.coordinator)]
        name = "coordinator" if index == 0 else f"coordinator-{index + 1}"
        return Child(name, argv, env=env, log_dir=self.run_dir, ready_text="coordinator ready on ")

    def _worker(self, name: str, peer_port: int, metrics_port: int, env: dict[str, str]) -> LocalWorker:
        socket_path = self._socket_path(name)
        argv = [
            sys.executable,
            "-m",
            "worker",
            "--node",
            name,
            "--peer-host",
            HOST,
            "--peer-port",
            str(peer_port),
        ]
        argv += ["--metrics-port", str(metrics_port), "--socket", str(socket_path)]
        argv += [
            "--namespace",
            self.namespace,
            "--hot-bytes",
            str(self.plan.hot_bytes),
            *as_flags(self.plan.overrides.worker),
        ]
        child = Child(name, argv, env=env, log_dir=self.run_dir, ready_text=f"worker {name} ready on ")
        return LocalWorker(name, socket_path, peer_port, metrics_port, child)

    def _announce(self) -> None:
        if read_cluster_file() is not None:
            return
        workers = [WorkerEntry(each.name, str(each.socket_path), each.metrics_port) for each in self.workers]
        write_cluster_file(
            ClusterState(
                self.coordinator_url,
                self.redis_url,
                self.namespace,
                os.getpid(),
                workers,
                coordinators=list(self.coordinator_urls),
            )
        )
        self.announced = True

    def _stop_processes(self) -> None:
        for worker in self.workers:
            worker.child.terminate()
        deadline = time.monotonic() + WORKER_GRACE_S
        for worker in reversed(self.workers):
            worker.child.stop(grace_s=max(0.0, deadline - time.monotonic()))
        for coordinator in self._coordinators:
            coordinator.terminate()
        deadline = time.monotonic() + COORDINATOR_GRACE_S
        for coordinator in self._coordinators:
            coordinator.stop(grace_s=max(0.0, deadline - time.monotonic()))
        if self._server is not None:
            self._server.stop(grace_s=SERVER_GRACE_S)


def _await_ready(children: Sequence[Child], what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    with progress(what):
        while waiting := [child for child in children if not child.ready]:
            for child in waiting:
                if not child.alive:
                    raise ConfigError(f"{child.name} did not start: {_why(child)}", field=child.name)
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"{waiting[0].name} was not ready after {timeout_s:.0f} s; its log is {waiting[0].stderr_path}",
                    field=waiting[0].name,
                )
            time.sleep(POLL_S)


def _why(child: Child) -> str:
    """Its own last sentence without its program's name, or how it ended and where its log is."""
    words = re.sub(r"^tiered-[a-z]+: ", "", child.last_words)
    return words or f"{child.ending}; its log is {child.stderr_path}"


def _say_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
