"""The collector that a scrape asks, and the families of the node and its pool; the others' are beside this file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tiered.blocks.state import BlockState
from tiered.metrics import worker as series
from tiered.metrics.series import build_info
from tiered.metrics.tenant_labels import TenantLabels
from tiered.types import DrainState
from worker.metrics.keeping import copies_families, directory_families, journal_families, why_families
from worker.metrics.movement import damaged_family, peer_families, plan_families, redis_families, timing_families
from worker.metrics.snapshot import Standing, WorkerSnapshot
from worker.metrics.tenants import second_families, tenant_families


class WorkerCollector(Collector):
    """``take`` returns one consistent snapshot; it is called from the scrape's thread."""

    def __init__(self, take: Callable[[], WorkerSnapshot], labels: TenantLabels | None = None) -> None:
        self._take = take
        self._labels = labels or TenantLabels()

    def describe(self) -> Iterable[Metric]:
        return ()  # so that registering does not take a snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._take()
        tenants = snapshot.stats.tenants
        label_of = self._labels.of({tenant: stats.tokens.asked for tenant, stats in tenants.items()})
        yield build_info(series.WORKER)
        yield from _standing_families(snapshot.standing)
        yield from _pool_families(snapshot)
        yield from tenant_families(tenants, label_of)
        yield from timing_families(snapshot.timings, snapshot.moved, snapshot.peers, snapshot.redis)
        yield from redis_families(snapshot.redis)
        yield series.COPIES_DROPPED.one(snapshot.moved.copies_dropped)
        yield damaged_family(snapshot)
        yield from peer_families(snapshot.peers, snapshot.served)
        yield from plan_families(snapshot.plans, snapshot.stats.rates)
        yield from directory_families(snapshot.directory)
        yield from second_families(tenants, label_of)
        yield from copies_families(snapshot.copies)
        if snapshot.journal is not None:
            yield from journal_families(snapshot.journal)
        yield from why_families(snapshot.why)


def _standing_families(standing: Standing) -> Iterator[Metric]:
    yield series.INFO.by({standing.node: 1.0})
    yield series.EPOCH.one(standing.epoch)
    yield series.LEASE_LEFT.one(standing.lease_left_s)
    yield series.HEARTBEAT_AGE.one(standing.heartbeat_age_s)
    yield series.REJOINS.one(standing.rejoins)
    yield series.REDIS_CONNECTED.one(standing.connected)
    yield series.PEERS.one(standing.peers_alive)


def _pool_families(snapshot: WorkerSnapshot) -> Iterator[Metric]:
    stats, by_state = snapshot.stats, snapshot.blocks_by_state
    yield series.ENGINES.one(stats.engines)
    yield series.ENGINES_REFUSED.by(snapshot.engines_refused)
    yield series.DRAINING.one(stats.drain.state is not DrainState.NONE)
    yield series.DRAIN_LEFT.one(stats.drain.left_blocks)
    yield series.POOL.by(by_state)
    yield series.POOL_SIZE.one(stats.pool_blocks)
    yield series.BLOCK_BYTES.one(stats.block_bytes)
    n_blocks = sum(by_state.values())
    yield series.POOL_DIFFERENCE.one(n_blocks - stats.pool_blocks)
    n_taken = n_blocks - by_state.get(BlockState.FREE.name.lower(), 0)
    yield series.HOT_DIFFERENCE.one(snapshot.charged_bytes - n_taken * stats.block_bytes)
