"""A coordinator's API and pages over a made-up view: as many tenants and nodes as wanted, without a worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast

import uvicorn

from coordinator.dashboard.mount import mount_dashboard
from coordinator.server.api import build_api
from coordinator.server.credentials import Credentials
from coordinator.server.known_tokens import KnownTokens
from coordinator.server.services import Services
from coordinator.view.explainer import Explainer
from coordinator.view.history import History
from coordinator.view.keeper import ViewKeeper
from coordinator.view.nodes_client import Heard, NodesClient
from coordinator.view.snapshot import Readings
from tests.support.worker_process import until
from tests.unit.coordinator.builders import node_info, node_stats, redis_usage, tokens
from tiered.clock import SystemClock
from tiered.cluster.access import AccessTokens
from tiered.cluster.clears import Clears
from tiered.cluster.connection import connect
from tiered.cluster.drains import Drains
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.tenants import Tenants
from tiered.cluster.why import BooksWhy
from tiered.config import RedisSettings
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import BlockHash, Epoch, Happening, NodeView, TenantId, TenantStats, Told
from tiered.wire.messages import Explain, Explained, Recent

_MIB = 1 << 20

UNLIMITED: Final = "tenant-0119"
"""Of those that ask most, one without a limit in Redis of its own."""


def readings(n_tenants: int, n_nodes: int, step: int) -> Readings:
    """Of one moment; the next step's counters have grown."""
    names = [f"tenant-{i:04d}" for i in range(n_tenants)]
    nodes = []
    for at in range(n_nodes):
        stats = {
            name: TenantStats(
                tokens=tokens(hot=(50 + i % 40) * step, peer=9 * step, redis=3 * step, missed=(i % 30) * step),
                hot_blocks=i % 7 + 1,
                hot_bytes=(i % 7 + 1) * 8192,
                evicted_blocks=step * (i % 5),
                refused_blocks=i % 3,
            )
            for i, name in enumerate(names)
        }
        info = node_info(f"node-{at:02d}", capacity_bytes=64 * _MIB)
        nodes.append(NodeView(info, Epoch(1_000 + at), 4.0 if at % 17 else 0.0, node_stats(**stats)))
    return Readings(
        nodes=tuple(nodes),
        policies={
            DEFAULT_TENANT: TenantPolicy(tenant=DEFAULT_TENANT, redis_limit_bytes=2 * _MIB),
            **{TenantId(name): _policy(name) for name in names},
        },
        redis={
            TenantId(name): redis_usage(used_bytes=(i % 90) * 65_536, blocks=i % 90) for i, name in enumerate(names)
        },
        redis_capacity_bytes=4096 * _MIB,
    )


def _policy(name: str) -> TenantPolicy:
    limit_bytes = None if name == UNLIMITED else 8 * _MIB
    return TenantPolicy(tenant=name, redis_limit_bytes=limit_bytes, hot_total_limit_bytes=4 * _MIB)


class _Memories:
    """In place of what asks the nodes: each remembers that some tenants gave way to others, and one was refused."""

    def ask(self, nodes: Sequence[NodeView], question: Callable[[NodeView], Explain | Recent]) -> list[Heard]:
        return [Heard(node, Explained(self._of(question(node)), last_seq=9, lost=0)) for node in nodes]

    def close(self) -> None:
        return

    def _of(self, question: Explain | Recent) -> tuple[Told, ...]:
        if isinstance(question, Explain) or question.after_seq:
            return ()
        happened = [
            Happening(
                "evicted",
                BlockHash(bytes([n]) * 32),
                f"tenant-{n:04d}",
                n_blocks=n,
                detail={
                    "why": "room",
                    "for_tenant": f"tenant-{n // 2 * 2:04d}",
                    "used": n,
                    "limit": -1,
                    "reserved": 0,
                },
            )
            for n in range(1, 9)
        ]
        happened.append(Happening("refused", BlockHash(b""), "tenant-0003", n_blocks=2, detail={"why": "quota"}))
        return tuple(
            Told(seq, time.time(), each)
            for seq, each in enumerate(happened, start=1)
            if not question.what or each.what in question.what
        )


@contextmanager
def seeded_app(settings: RedisSettings, *, n_tenants: int, n_nodes: int) -> Iterator[str]:
    """Its URL; the view grows once a second as a coordinator's does."""
    client = connect(settings, timeout_s=5.0)
    keys = Keys(settings.namespace)
    steps = iter(range(1, 1_000_000))
    history = History()
    keeper = ViewKeeper(lambda: readings(n_tenants, n_nodes, next(steps)), SystemClock(), told=history.note)
    keeper.refresh()
    access = AccessTokens(client, keys)
    credentials = Credentials(admin_token="", read_token="", tokens=access, known=KnownTokens(access, SystemClock()))
    services = Services(
        keeper,
        Tenants(client, keys),
        credentials,
        RedisLedger(client, keys),
        Drains(client, keys),
        Clears(client, keys),
        history=history,
        explainer=Explainer(cast(NodesClient, _Memories()), BooksWhy(client, keys)),
    )
    app = build_api(services)
    mount_dashboard(app)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1))
    is_over = threading.Event()
    serving = threading.Thread(target=server.run, daemon=True)
    growing = threading.Thread(target=_grow, args=(keeper, is_over), daemon=True)
    serving.start()
    growing.start()
    try:
        until(lambda: server.started, "the server listens", within_s=30)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        is_over.set()
        server.should_exit = True
        serving.join(10.0)
        growing.join(10.0)
        client.close()


def _grow(keeper: ViewKeeper, is_over: threading.Event) -> None:
    while not is_over.wait(1.0):
        keeper.refresh()
