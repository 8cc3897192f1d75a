"""Snapshots -> Prometheus families, on scrape. Tenant labels are capped; the rest count as ``other``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tiered.cluster.announcing import AnnouncingCounters
from tiered.core.fetch_plan import PlanCounters
from tiered.tiers.peer import PeerCounters
from tiered.tiers.redis.tier import RedisTierCounters
from tiered.types import NodeRates, NodeStats, TenantStats
from worker.copies_metrics import CopiesSnapshot, copies_families
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
    plans: PlanCounters
    announcing: AnnouncingCounters
    unannounced_blocks: int
    copies: CopiesSnapshot


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
        yield _gauge("tiered_worker_epoch", "Epoch of this life; 0 while fenced", {(): float(snapshot.epoch)}, ())
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
        yield from _directory_families(snapshot.announcing, snapshot.unannounced_blocks)
        if snapshot.journal is not None:
            yield from _journal_families(snapshot.journal)
        yield from _plan_families(snapshot.plans, snapshot.stats.rates)
        yield from _redis_families(snapshot.redis)
        yield from copies_families(snapshot.copies, _capped(snapshot.stats.tenants), snapshot.redis.replicated)
        yield _counter("tiered_peer_fetched_blocks", "Blocks fetched from peers", {(): snapshot.peers.blocks}, ())
        yield _counter(
            "tiered_peer_received_bytes",
            "Payload bytes received from peers, good or not",
            {(): snapshot.peers.received_bytes},
            (),
        )
        yield _counter(
            "tiered_peer_fetch_seconds",
            "Time spent in fetches from peers, summed over those that ran side by side",
            {(): snapshot.peers.busy_s},
            (),
        )
        yield _counter(
            "tiered_peer_missed_blocks",
            "Blocks a peer was asked for in vain, by reason",
            {(reason,): n for reason, n in snapshot.peers.misses.items()},
            ("reason",),
        )
        yield _counter("tiered_peer_sent_blocks", "Blocks sent to peers", {(): snapshot.served.sent_blocks}, ())
        yield _counter("tiered_peer_sent_bytes", "Bytes sent to peers", {(): snapshot.served.sent_bytes}, ())
        yield _counter(
            "tiered_peer_refused",
            "Connections and requests of peers that were refused, by reason",
            {(reason,): n for reason, n in snapshot.served.refused.items()},
            ("reason",),
        )


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


def _plan_families(plans: PlanCounters, rates: NodeRates) -> Iterable[Metric]:
    yield _counter(
        "tiered_fetch_plans",
        "Prompts of which peers or Redis had more, by what was decided",
        {(decision.value,): n for decision, n in plans.decisions.items()},
        ("decision",),
    )
    yield _counter(
        "tiered_fetch_seconds",
        "How long the fetches that were decided on were expected to take, and took",
        {("expected",): plans.expected_s, ("measured",): plans.measured_s},
        ("kind",),
    )
    yield _counter(
        "tiered_fetch_out_of_patience", "Fetches not waited for to their end", {(): plans.out_of_patience}, ()
    )
    yield _counter("tiered_fetch_probes", "Fetches to see how fast a slow source is by now", {(): plans.probes}, ())
    measured = {("peer",): rates.peers, ("redis",): rates.redis}
    yield _gauge(
        "tiered_source_latency_seconds",
        "Measured latency of a fetch",
        {kind: rate.latency_s for kind, rate in measured.items()},
        ("source",),
    )
    yield _gauge(
        "tiered_source_bytes_per_second",
        "Measured bandwidth of fetches; 0 while there were none",
        {kind: rate.bytes_per_s for kind, rate in measured.items()},
        ("source",),
    )
    yield _gauge("tiered_source_waiting_seconds", "Work that waits at the sources", {(): rates.waiting_s}, ())
    yield _gauge(
        "tiered_prefill_tokens_per_second",
        "How fast the engines compute prompts; 0 while none has said",
        {(): rates.prefill_tokens_per_s},
        (),
    )


def _directory_families(counters: AnnouncingCounters, unannounced: int) -> Iterable[Metric]:
    yield _counter(
        "tiered_directory_announced_blocks",
        "Blocks that came or left and of which the directory has heard",
        {(): counters.announced_blocks},
        (),
    )
    yield _gauge("tiered_directory_unannounced_blocks", "Blocks it has yet to hear of", {(): float(unannounced)}, ())
    yield _counter(
        "tiered_directory_repairs",
        "Partitions of the directory that differed from what is here and were put right",
        {(): counters.repairs},
        (),
    )
    yield _counter(
        "tiered_directory_repaired_blocks", "Blocks that were wrong there", {(): counters.repaired_blocks}, ()
    )
    yield _counter(
        "tiered_directory_refreshed_blocks",
        "Blocks announced again in case their stamps were lost",
        {(): counters.refreshed_blocks},
        (),
    )


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
            seconds=sofar.seconds.plus(more.seconds),
        )
    return shown


def _gauge(name: str, what: str, values: Mapping[tuple[str, ...], float], labels: tuple[str, ...]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _counter(name: str, what: str, values: Mapping[tuple[str, ...], float], labels: tuple[str, ...]) -> Metric:
    family = CounterMetricFamily(name, what, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family
