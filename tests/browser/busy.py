"""A small cluster under load that looks like work: tenants with promises, conversations that share beginnings."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.support.content import LAYOUT, hashes_of, save, take
from tests.support.coordinator_process import CoordinatorProcess, coordinators
from tests.support.small_cluster import SmallCluster, small_cluster
from tiered.client.remote import RemoteClient
from tiered.cluster.embedded import EmbeddedServer
from tiered.errors import TieredError
from tiered.types import TenantId

ADMIN, READER = "admin-s3cret", "read-s3cret"
SECRET: Final = "s3"
LEASE_S: Final = 5.0
PACE_S: Final = 0.15
NODES: Final = ("rack-1", "rack-2", "rack-3")
ACME, GLOBEX, INITECH, UMBRELLA = (TenantId(name) for name in ("acme", "globex", "initech", "umbrella-research"))
TENANTS: Final = (ACME, GLOBEX, INITECH, UMBRELLA)

_MIB: Final = 1 << 20
_POLICIES: Final[dict[TenantId, dict[str, object]]] = {
    ACME: {"hot_total_reserved_bytes": 2 * _MIB, "redis_limit_bytes": 8 * _MIB, "redis_reserved_bytes": 2 * _MIB},
    GLOBEX: {"hot_total_limit_bytes": 3 * _MIB, "redis_limit_bytes": 4 * _MIB},
    INITECH: {"hot_limit_bytes": _MIB // 2, "redis_limit_bytes": 2 * _MIB, "over_quota": "refuse"},
}
_WORKER: Final = (*("pool.demote=evicted", f"cluster.secret={SECRET}", f"cluster.lease_ttl_s={LEASE_S:g}"),)
_COORDINATOR: Final = (f"cluster.secret={SECRET}", "cluster.share_settle_s=1")


def tokens_of(seed: int, n_blocks: int) -> list[int]:
    return [(seed * 7_919 + i * 31) % 100_003 for i in range(n_blocks * LAYOUT.block_tokens)]


def talk(tenant_index: int, subject: int, turn: int) -> list[int]:
    """A system prompt, one of a few subjects after it, and what grows with each turn."""
    system = tokens_of(100 + tenant_index, 12)
    about = tokens_of(1_000 + 10 * tenant_index + subject % 3, 6)
    return system + about + tokens_of(10_000 + 100 * tenant_index + subject, 4 + 3 * turn)


class Engine:
    """Asks one worker for ever, in a thread of its own; attached while it rests."""

    def __init__(self, cluster: SmallCluster, name: str, index: int, wrong: list[Exception]) -> None:
        self.rounds = 0
        self._cluster, self._name, self._index, self._wrong = cluster, name, index, wrong
        self._may_ask, self._is_over = threading.Event(), threading.Event()
        self._asking = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        self._may_ask.set()

    def rest(self) -> None:
        self._may_ask.clear()
        with self._asking:  # what was asked is answered
            return

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(30.0)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with self._cluster.attach(self._name) as client:
            while not self._is_over.wait(PACE_S):
                with self._asking:
                    if not self._may_ask.is_set():
                        continue
                    try:
                        _ask(client, self._index + self.rounds)
                    except (TieredError, OSError) as error:
                        if self._cluster.workers[self._name].process.is_alive():
                            self._wrong.append(error)
                        return
                    self.rounds += 1


@dataclass(slots=True)
class Busy:
    """wrong: what an engine should not have met."""

    cluster: SmallCluster
    coordinator: CoordinatorProcess
    wrong: list[Exception] = field(default_factory=list)
    _engines: dict[str, Engine] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.coordinator.url

    @property
    def rounds(self) -> int:
        return sum(engine.rounds for engine in self._engines.values())

    def attach(self, name: str) -> None:
        """An engine beside this worker, in the place of one whose worker died; it asks at once."""
        if name in self._engines:
            self._engines[name].end()
        self._engines[name] = Engine(self.cluster, name, NODES.index(name), self.wrong)
        self._engines[name].go_on()

    def go_on(self) -> None:
        for engine in self._engines.values():
            engine.go_on()

    def rest(self) -> None:
        """Nobody asks any more, so that numbers stand still."""
        for engine in self._engines.values():
            engine.rest()

    def end(self) -> None:
        for engine in self._engines.values():
            engine.end()


def _ask(client: RemoteClient, n: int) -> None:
    which = (n * 5 + n // 7) % 11
    tenant_index = 0 if which < 5 else 1 if which < 8 else 2 if which < 9 else 3
    tenant = TENANTS[tenant_index]
    tokens = talk(tenant_index, n % 17, n % 5)
    client.note_prefill(n_tokens=2_048, took_s=0.4)
    if take(client, tokens, tenant=tenant).total() < len(hashes_of(tokens, tenant=tenant)):
        save(client, tokens, tenant=tenant, wait_s=0.1)


@contextmanager
def busy_cluster(
    server: EmbeddedServer, *, workers: Sequence[str] = NODES, settings: Sequence[str] = ()
) -> Iterator[Busy]:
    """Workers and a coordinator; nobody asks until engines are attached."""
    with ExitStack() as stack:
        cluster = stack.enter_context(small_cluster(server))
        cluster.tenants.set_capacity(24 * _MIB)
        for tenant, bounds in _POLICIES.items():
            cluster.set_policy(tenant, **bounds)
        (coordinator,) = stack.enter_context(
            coordinators(1, server, cluster.namespace, cluster.directory, *_COORDINATOR, *settings)
        )
        cluster.start(*workers, hot="3MiB", settings=_WORKER)
        busy = Busy(cluster, coordinator)
        try:
            yield busy
        finally:
            busy.end()
