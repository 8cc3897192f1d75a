"""What does a scrape cost with 1,000 tenants? It must be less than 20 ms; baseline of each row: with 10 tenants.

Of a worker the part that is taken on the event loop is told apart, since nothing else runs there meanwhile. Each is
fetched over HTTP from this same process; times are of its own CPU, both sides of the connection together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.request import urlopen

from _harness import Report, median
from prometheus_client import CollectorRegistry, start_http_server

from coordinator.metrics import Sources, build_registry
from coordinator.view.snapshot import Readings, assemble
from tiered.cluster.announcing import AnnouncingCounters
from tiered.cluster.ledger import RedisUsage
from tiered.core.core import CacheCore, CoreOptions
from tiered.core.fetch_plan import PlanCounters
from tiered.core.stats import node_stats
from tiered.eviction.registry import policy_factory
from tiered.seam.driver import DriverCounters
from tiered.tenancy.policy import TenantPolicy
from tiered.tiers.peer import PeerCounters
from tiered.tiers.redis.counting import RedisTierCounters
from tiered.types import BlockHash, Epoch, NodeInfo, NodeStats, NodeView, TenantId, TokenCounts
from worker.engine_timings import EngineTimings
from worker.lost import LostCounters
from worker.metrics.collector import WorkerCollector
from worker.metrics.snapshot import DirectoryFacts, Standing, WhySnapshot, WorkerSnapshot, copies_snapshot
from worker.peer_server import PeerServerCounters

N_TENANTS, FEW_TENANTS = 1_000, 10
N_NODES = 3
RUNS = 41


def names(n_tenants: int) -> list[TenantId]:
    return [TenantId(f"tenant-{i:04d}") for i in range(n_tenants)]


def core_of(n_tenants: int) -> CacheCore:
    """Each tenant has a block here, a limit, and something counted."""
    options = CoreOptions(block_bytes=1 << 20, block_tokens=16, policy=policy_factory("lru"), lower_tier=False)
    core = CacheCore(options, 2 * N_TENANTS)
    core.set_policies(
        {name: TenantPolicy(tenant=name, hot_limit_bytes=1 << 30, hot_reserved_bytes=0) for name in names(n_tenants)}
    )
    for i, name in enumerate(names(n_tenants)):
        block_hash = BlockHash(i.to_bytes(32, "big"))
        block_id = core.become_filling(block_hash, scope_id=b"", tenant=name, parent=-1, depth=0)  # type: ignore[arg-type]
        assert block_id is not None
        core.become_ready(block_id, None)
        core.count(name).tokens = TokenCounts(asked=100 * i, hot=60 * i, missed=40 * i)
    return core


def snapshot_of(core: CacheCore) -> WorkerSnapshot:
    stats = node_stats(core, engines=1, layout="")
    return WorkerSnapshot(
        standing=Standing("bench", 1, 4.0, 0.5, rejoins=0, connected=True, peers_alive=0),
        stats=stats,
        blocks_by_state={"free": stats.free_blocks, "ready": stats.pool_blocks - stats.free_blocks},
        charged_bytes=core.ledger.total_bytes(),
        timings=EngineTimings().copy(),
        moved=DriverCounters().copy(),
        journal=None,
        redis=RedisTierCounters(0, {}, {}, {}, 0, 0, False, 0),
        peers=PeerCounters(blocks=0, misses={}),
        served=PeerServerCounters(),
        plans=PlanCounters(),
        directory=DirectoryFacts(AnnouncingCounters(), 0, differing=0),
        copies=copies_snapshot(None, LostCounters()),
        why=WhySnapshot(0, 0, 0),
    )


def worker_registry(core: CacheCore) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(WorkerCollector(lambda: snapshot_of(core)))
    return registry


def coordinator_registry(stats: NodeStats, n_tenants: int) -> CollectorRegistry:
    tenants = names(n_tenants)
    nodes = [
        NodeView(NodeInfo(f"n{i}", "10.0.0.1", 1, 2, "", 1 << 40), Epoch(i + 1), 4.0, stats) for i in range(N_NODES)
    ]
    readings = Readings(
        nodes=tuple(nodes),
        policies={name: TenantPolicy(tenant=name, hot_limit_bytes=1 << 30) for name in tenants},
        redis={name: RedisUsage(used_bytes=1 << 20, pending_bytes=0, blocks=1) for name in tenants},
    )
    view = assemble(readings, taken_at=0.0)
    return build_registry(Sources(lambda: view))


def scrape_ms(registry: CollectorRegistry) -> float:
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        return cpu_ms(_fetch(f"http://127.0.0.1:{server.server_port}/metrics"))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def cpu_ms(action: Callable[[], object]) -> float:
    def once() -> float:
        began = time.process_time_ns()
        action()
        return (time.process_time_ns() - began) / 1e6

    once()
    return median([once() for _ in range(RUNS)])


def _fetch(url: str) -> Callable[[], None]:
    def fetch() -> None:
        with urlopen(url, timeout=5.0) as answer:
            assert b"tiered_build_info" in answer.read()

    return fetch


def main() -> None:
    report = Report("scrape")
    many, few = core_of(N_TENANTS), core_of(FEW_TENANTS)
    on_loop_ms = [cpu_ms(lambda core=core: snapshot_of(core)) for core in (few, many)]  # type: ignore[misc]
    worker_ms = [scrape_ms(worker_registry(core)) for core in (few, many)]
    coordinator_ms = [
        scrape_ms(coordinator_registry(node_stats(core, engines=1, layout=""), n))
        for core, n in ((few, FEW_TENANTS), (many, N_TENANTS))
    ]
    for what, (baseline, value) in (
        (f"scrape of a worker, {N_TENANTS} tenants", worker_ms),
        ("of it, on the worker's event loop", on_loop_ms),
        (f"scrape of a coordinator, {N_TENANTS} tenants on {N_NODES} nodes", coordinator_ms),
    ):
        report.add(what, value, "ms", baseline=baseline)
    report.finish()


if __name__ == "__main__":
    main()
