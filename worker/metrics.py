"""Snapshots -> Prometheus families, on scrape. Tenant labels are capped; the rest count as ``other``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tiered.tiers.peer import PeerCounters
from tiered.tiers.redis.tier import RedisTierCounters
from tiered.types import NodeStats, TenantStats
from worker.journal import JournalSnapshot
from worker.peer_server import PeerServerCounters

TENANT_LABELS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    node: str
    version: str
    epoch: int
    connected: bool
    peers_alive: int
    stats: NodeStats
    blocks_by_state: Mapping[str, int]
    copies_dropped: int
    journal: JournalSnapshot | None
    redis: RedisTierCounters
    peers: PeerCounters
    served: PeerServerCounters


class WorkerCollector(Collector):
    """``take`` returns one consistent snapshot; it is called from the scrape's thread."""

    def __init__(self, take: Callable[[], WorkerSnapshot]) -> None:
        self._take = take

    def describe(self) -> Iterable[Metric]:
        return ()  # so that registering does not take a snapshot

    def collect(self) -> Iterable[Metric]:
        snapshot = self._take()
        yield _gauge(
            "tiered_worker_info",
            "Build and identity; always 1",
            {(snapshot.node, snapshot.version): 1.0},
            ("node", "version"),
        )
        yield _gauge("tiered_worker_epoch", "Epoch of this life", {(): float(snapshot.epoch)}, ())
        yield _gauge(
            "tiered_worker_redis_connected", "1 while the shared state answers", {(): float(snapshot.connected)}, ()
        )
        yield _gauge("tiered_worker_peers", "Other workers whose lease runs", {(): float(snapshot.peers_alive)}, ())
        yield _gauge("tiered_worker_engines", "Engines attached", {(): float(snapshot.stats.engines)}, ())
        yield _gauge(
            "tiered_pool_blocks",
            "Blocks of the pool by state",
            {(state,): float(n) for state, n in snapshot.blocks_by_state.items()},
            ("state",),
        )
        yield from _tenant_families(_capped(snapshot.stats.tenants))
        yield _counter(
            "tiered_demotions_dropped",
            "Evictions whose copy found no staging buffer",
            {(): snapshot.copies_dropped},
            (),
        )
        if snapshot.journal is not None:
            yield from _journal_families(snapshot.journal)
        yield from _redis_families(snapshot.redis)
        yield _counter("tiered_peer_fetched_blocks", "Blocks fetched from peers", {(): snapshot.peers.blocks}, ())
        yield _counter(
            "tiered_peer_missed_blocks",
            "Blocks a peer was asked for in vain, by reason",
            {(reason,): n for reason, n in snapshot.peers.misses.items()},
            ("reason",),
        )
        yield _counter("tiered_peer_sent_blocks", "Blocks sent to peers", {(): snapshot.served.sent_blocks}, ())
        yield _counter("tiered_peer_sent_bytes", "Bytes sent to peers", {(): snapshot.served.sent_bytes}, ())
        yield _counter("tiered_peer_refused", "Peer connections refused", {(): snapshot.served.refused}, ())


def _tenant_families(tenants: Mapping[str, TenantStats]) -> Iterable[Metric]:
    tokens: dict[tuple[str, ...], int] = {}
    for tenant, stats in tenants.items():
        for outcome in ("hot", "peer", "redis", "missed"):
            tokens[(tenant, outcome)] = getattr(stats.tokens, outcome)
    yield _counter(
        "tiered_tokens",
        "Prompt tokens by where they were found; the sum is what was asked for",
        tokens,
        ("tenant", "outcome"),
    )
    yield _gauge(
        "tiered_hot_bytes",
        "Bytes of the hot tier",
        {(tenant,): float(stats.hot_bytes) for tenant, stats in tenants.items()},
        ("tenant",),
    )
    for name, what, field in (
        ("evicted", "Blocks evicted from the hot tier", "evicted_blocks"),
        ("demoted", "Blocks copied towards Redis as they were evicted", "demoted_blocks"),
        ("refused", "Blocks refused for want of room or quota", "refused_blocks"),
    ):
        values: dict[tuple[str, ...], int] = {(tenant,): getattr(stats, field) for tenant, stats in tenants.items()}
        yield _counter(f"tiered_{name}_blocks", what, values, ("tenant",))


def _journal_families(journal: JournalSnapshot) -> Iterable[Metric]:
    counters = journal.counters
    yield _counter("tiered_journal_written_rows", "Changes written to the journal", {(): counters.written}, ())
    yield _counter(
        "tiered_journal_lost_rows",
        "Changes lost because the disk did not keep up or refused them",
        {(): counters.lost},
        (),
    )
    yield _gauge("tiered_journal_pending_rows", "Changes that wait for the disk", {(): float(counters.pending)}, ())
    yield _gauge("tiered_journal_failing", "1 while the disk refuses the journal", {(): float(counters.failing)}, ())
    yield _counter("tiered_adopted_blocks", "Blocks of the earlier life taken over", {(): journal.adopted}, ())
    yield _counter(
        "tiered_not_adopted_blocks",
        "Blocks of the earlier life that were not taken over, by reason",
        {(reason,): n for reason, n in journal.left.items()},
        ("reason",),
    )
    yield _counter("tiered_warmed_blocks", "Blocks warmed up from Redis after the start", {(): journal.warmed}, ())


def _redis_families(counters: RedisTierCounters) -> Iterable[Metric]:
    yield _counter("tiered_redis_hit_blocks", "Blocks read from Redis and verified", {(): counters.hits}, ())
    yield _counter(
        "tiered_redis_missed_blocks",
        "Blocks asked of Redis in vain, by reason",
        {(reason,): n for reason, n in counters.misses.items()},
        ("reason",),
    )
    yield _counter(
        "tiered_redis_puts",
        "Blocks offered to Redis, by answer",
        {(answer.value,): n for answer, n in counters.puts.items()},
        ("answer",),
    )
    yield _counter(
        "tiered_redis_stored_blocks",
        "Blocks written to Redis, by the codec they are stored with",
        {(codec,): n for codec, n in counters.codecs.items()},
        ("codec",),
    )
    yield _counter("tiered_redis_read_bytes", "Bytes read from Redis", {(): counters.bytes_read}, ())
    yield _counter("tiered_redis_written_bytes", "Bytes written to Redis", {(): counters.bytes_written}, ())
    yield _gauge("tiered_redis_breaker_open", "1 while the breaker is open", {(): float(counters.breaker_open)}, ())
    yield _counter("tiered_redis_breaker_opened", "Times the breaker opened", {(): counters.breaker_opened_total}, ())


def _capped(tenants: Mapping[str, TenantStats]) -> dict[str, TenantStats]:
    """The largest tenants by name; the others folded into one."""
    ranked = sorted(tenants, key=lambda tenant: tenants[tenant].tokens.asked, reverse=True)
    shown = {tenant: tenants[tenant] for tenant in ranked[:TENANT_LABELS_MAX]}
    for tenant in ranked[TENANT_LABELS_MAX:]:
        more, sofar = tenants[tenant], shown.get("other", TenantStats())
        shown["other"] = TenantStats(
            tokens=sofar.tokens.plus(more.tokens),
            hot_blocks=sofar.hot_blocks + more.hot_blocks,
            hot_bytes=sofar.hot_bytes + more.hot_bytes,
            evicted_blocks=sofar.evicted_blocks + more.evicted_blocks,
            demoted_blocks=sofar.demoted_blocks + more.demoted_blocks,
            refused_blocks=sofar.refused_blocks + more.refused_blocks,
        )
    return shown


def _gauge(name: str, what: str, values: Mapping[tuple[str, ...], float], labels: tuple[str, ...]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _counter(name: str, what: str, values: Mapping[tuple[str, ...], int], labels: tuple[str, ...]) -> Metric:
    family = CounterMetricFamily(name, what, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family
