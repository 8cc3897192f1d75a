"""The families of bytes that move: how long it takes, between which places, what was damaged, what was decided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import Metric

from tiered.codec.codecs import CODEC_NAMES
from tiered.core.fetch_plan import PlanCounters
from tiered.metrics import worker as series
from tiered.seam.driver import DriverCounters
from tiered.tiers.peer import PeerCounters
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.counting import Asked, RedisTierCounters
from tiered.types import NodeRates
from worker.engine_timings import EngineTimings
from worker.metrics.snapshot import WorkerSnapshot
from worker.peer_server import PeerServerCounters

DAMAGE: Final = frozenset({"length", "magic", "header", "hash", "scope", "checksum", "decode"})
"""Why a block was not taken, where that means that its bytes are not what they should be: not for want of them, and
not for a version or a codec that is not read here."""


_REDIS_MISSES: Final = ("absent", "unavailable", "version", "codec", *sorted(DAMAGE))
_PEER_MISSES: Final = (
    *("absent", "unavailable", "resting", "busy", "secret", "epoch", "node", "protocol", "refused"),
    *("version", "codec", *sorted(DAMAGE)),
)
_REPLICATED: Final = ("yes", "late", "no replica")


def timing_families(
    engines: EngineTimings, moved: DriverCounters, peers: PeerCounters, redis: RedisTierCounters
) -> Iterator[Metric]:
    yield series.MATCH.timed({(): engines.match})
    yield series.LOAD.timed({(): engines.load})
    yield series.SAVE.timed({(): engines.save})
    yield series.DEMOTE.timed({(): moved.demoted})
    yield series.PEER_FETCH.timed({(): peers.took})
    yield series.REDIS_CALLS.timed({(asked,): took for asked, took in redis.took.items()})


def damaged_family(snapshot: WorkerSnapshot) -> Metric:
    by_source = {
        "hot": snapshot.moved.torn_copies,
        "peer": _damaged(snapshot.peers.misses),
        "redis": _damaged(snapshot.redis.misses),
        "journal": 0 if snapshot.journal is None else snapshot.journal.left.get("corrupt", 0),
    }
    return series.DAMAGED.by(by_source)


def redis_families(counters: RedisTierCounters) -> Iterator[Metric]:
    yield series.REDIS_FAILED.by({asked.value: counters.failed.get(asked, 0) for asked in Asked})
    yield series.BREAKER_OPEN.one(counters.breaker_open)
    yield series.BREAKER_OPENED.one(counters.breaker_opened_total)
    yield series.REDIS_HITS.one(counters.hits)
    yield series.REDIS_MISSES.by(from_zero(_REDIS_MISSES, counters.misses))
    yield series.REDIS_PUTS.by({answer.value: counters.puts.get(answer, 0) for answer in PutAnswer})
    yield series.REDIS_STORED.by(from_zero(CODEC_NAMES, counters.codecs))
    yield series.REDIS_READ.one(counters.bytes_read)
    yield series.REDIS_WRITTEN.one(counters.bytes_written)
    yield series.REPLICATED.by(from_zero(_REPLICATED, counters.replicated))


def peer_families(peers: PeerCounters, served: PeerServerCounters) -> Iterator[Metric]:
    yield series.PEER_FETCHED.one(peers.blocks)
    yield series.PEER_RECEIVED.one(peers.received_bytes)
    yield series.PEER_MISSED.by(from_zero(_PEER_MISSES, peers.misses))
    yield series.PEER_SENT.one(served.sent_blocks)
    yield series.PEER_SENT_BYTES.one(served.sent_bytes)
    yield series.PEER_REFUSED.by(served.refused)


def plan_families(plans: PlanCounters, rates: NodeRates) -> Iterator[Metric]:
    yield series.PLANS.by({decision.value: n for decision, n in plans.decisions.items()})
    yield series.PLANNED.by({"expected": plans.expected_s, "measured": plans.measured_s})
    yield series.OUT_OF_PATIENCE.one(plans.out_of_patience)
    yield series.PROBES.one(plans.probes)
    measured = {"peer": rates.peers, "redis": rates.redis}
    yield series.SOURCE_LATENCY.by({source: rate.latency_s for source, rate in measured.items()})
    yield series.SOURCE_RATE.by({source: rate.bytes_per_s for source, rate in measured.items()})
    yield series.SOURCE_WAITING.one(rates.waiting_s)
    yield series.PREFILL_RATE.one(rates.prefill_tokens_per_s)


def from_zero(known: Iterable[str], counts: Mapping[str, int]) -> dict[str, float]:
    """Known values of a label are there before anything is counted under them, so that the first is seen to come."""
    return dict.fromkeys(known, 0.0) | dict(counts.items())


def _damaged(misses: Mapping[str, int]) -> int:
    return sum(n_blocks for reason, n_blocks in misses.items() if reason in DAMAGE)
