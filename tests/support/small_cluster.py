"""Real workers on one real server, in a directory and a namespace of their own."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import redis

from tests.support.content import SCOPE
from tests.support.worker_process import WorkerProcess, scrape, spawn_worker, until
from tiered.client.remote import RemoteClient, RemoteOptions
from tiered.cluster.connection import connect
from tiered.cluster.directory import Directory
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.cluster.membership import Membership
from tiered.cluster.tenants import Tenants
from tiered.config import RedisSettings
from tiered.errors import TierError
from tiered.hashing.scope import ModelScope
from tiered.pool import named
from tiered.tenancy.policy import TenantPolicy
from tiered.types import NodeId, NodeView, TenantId

PATIENT = RemoteOptions(call_timeout_s=5.0, grace_s=5.0)
"""For tests that are not about deadlines: the machine may be busy."""

_GENTLE = (("redis.lookup_timeout_s", "2"), ("redis.control_timeout_s", "5"), ("redis.value_timeout_s", "5"))


class SmallCluster:
    """``patient``: deadlines that a busy machine keeps; otherwise the settings' own."""

    def __init__(self, server: EmbeddedServer, *, patient: bool = True) -> None:
        self.server = server
        self.directory = Path(tempfile.mkdtemp(prefix="tiered-"))  # short, because sockets live in it
        self.namespace = f"t-{uuid.uuid4().hex[:12]}"
        self.keys = Keys(self.namespace)
        settings = RedisSettings(url=server.url, namespace=self.namespace)
        self.client: redis.Redis = connect(settings, timeout_s=5.0)
        self.membership = Membership(self.client, self.keys)
        self.tenants = Tenants(self.client, self.keys)
        self.workers: dict[str, WorkerProcess] = {}
        self._patient = patient

    def spawn(
        self,
        name: str,
        *assignments: str,
        hot: str = "4MiB",
        extra: Sequence[str] = (),
        skew_s: float = 0.0,
        tree: Path | None = None,
    ) -> WorkerProcess:
        """Start a worker; assignments are KEY=VALUE settings. It is not waited for.

        skew_s, tree: see spawn_worker.
        """
        argv = ["--redis-url", self.server.url, "--namespace", self.namespace, "--hot-bytes", hot]
        for key, value in _GENTLE if self._patient else ():
            argv += ["--set", f"{key}={value}"]
        for assignment in assignments:
            argv += ["--set", assignment]
        worker = spawn_worker(
            name,
            [*argv, *extra],
            self.directory,
            socket_path=self.socket_path(name),
            skew_s=skew_s,
            tree=tree,
        )
        self.workers[name] = worker
        return worker

    def start(self, *names: str, hot: str = "4MiB", settings: Sequence[str] = ()) -> list[WorkerProcess]:
        """Start workers and wait until all are ready and know each other."""
        started = [self.spawn(name, *settings, hot=hot) for name in names]
        for worker in started:
            worker.wait_ready()
        if len(started) > 1:
            for name in names:
                self._wait_peers(name, len(started) - 1)
        return started

    def restart(self, name: str) -> WorkerProcess:
        self.workers[name] = self.workers[name].again()
        return self.workers[name]

    def socket_path(self, name: str) -> str:
        return str(self.directory / f"{name}.sock")

    def attach(
        self, name: str, *, scope: ModelScope = SCOPE, options: RemoteOptions = PATIENT
    ) -> closing[RemoteClient]:
        """A client of that worker, closed at the end of the ``with``."""
        return closing(RemoteClient.attach(self.socket_path(name), scope, engine="test", options=options))

    def view(self, name: str) -> NodeView | None:
        """The node's entry in the shared state, if it has one."""
        views = {view.info.node: view for view in self.membership.nodes()}
        return views.get(name)

    def node(self, name: str) -> NodeView:
        view = self.view(name)
        assert view is not None, f"{name} is not a member"
        return view

    def metrics(self, name: str) -> dict[tuple[str, ...], float]:
        return scrape(self.node(name).info.metrics_port)

    def blocks(self, name: str) -> dict[str, int]:
        """Blocks of the pool by state, as the worker itself says."""
        states = ("free", "filling", "ready", "leaving")
        sample = self.metrics(name)
        return {state: int(sample.get(("tiered_pool_blocks", state), 0)) for state in states}

    def announced(self, name: str) -> int:
        """How many blocks this life of the node stands for in the directory."""
        view = self.view(name)
        return -1 if view is None else Directory(self.client, self.keys).count(NodeId(name), view.epoch)

    def wait_announced(self, name: str, n_blocks: int, *, within_s: float = 30.0) -> None:
        def there() -> bool:
            try:
                return self.announced(name) == n_blocks
            except TierError:
                return False

        until(there, f"{n_blocks} blocks of {name} are announced", within_s=within_s)

    def wait_acquainted(self) -> None:
        """Every worker knows that all the others live."""
        for name in self.workers:
            self._wait_peers(name, len(self.workers) - 1)

    def _wait_peers(self, name: str, n_others: int) -> None:
        until(lambda: self.metrics(name)[("tiered_worker_peers",)] >= n_others, f"{name} looked around", within_s=30)

    def set_policy(self, tenant: TenantId, **bounds: object) -> None:
        policy = TenantPolicy.model_validate({"tenant": tenant, **bounds})
        assert self.tenants.create(policy) or self.tenants.replace(policy)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.end()
            named.remove_pools(self.directory / f"tiered-{worker.name}.journal")
        self.client.close()
        shutil.rmtree(self.directory)

    def stray_exceptions(self) -> list[str]:
        """Workers whose log holds a stack: something went wrong that nobody expected."""
        return [f"{name}: {worker.log}" for name, worker in self.workers.items() if "Traceback" in worker.log]


@contextmanager
def small_cluster(server: EmbeddedServer, *, patient: bool = True) -> Iterator[SmallCluster]:
    """Closed at the end; fails when a worker wrote a stack into its log."""
    cluster = SmallCluster(server, patient=patient)
    try:
        yield cluster
        assert cluster.stray_exceptions() == []
    finally:
        cluster.close()
