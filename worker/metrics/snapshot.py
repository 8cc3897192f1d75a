"""What the worker's parts have counted, at one moment; plain records, made on the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiered.cluster.announcing import AnnouncingCounters
from tiered.core.copies import SecondCopies
from tiered.core.fetch_plan import PlanCounters
from tiered.seam.driver import DriverCounters
from tiered.tiers.peer import PeerCounters
from tiered.tiers.redis.counting import RedisTierCounters
from tiered.types import NodeStats
from worker.engine_timings import EngineTimings
from worker.journal import JournalSnapshot
from worker.lost import LostCounters
from worker.peer_server import PeerServerCounters
from worker.why import WhyRing


@dataclass(frozen=True, slots=True)
class Standing:
    """This node as a member. epoch and lease_left_s are 0 while it is fenced."""

    node: str
    epoch: int
    lease_left_s: float
    heartbeat_age_s: float
    rejoins: int
    connected: bool
    peers_alive: int


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """What the directory has heard, has yet to hear, and has wrong. differing: partitions."""

    counters: AnnouncingCounters
    unannounced_blocks: int
    differing: int


@dataclass(frozen=True, slots=True)
class CopiesSnapshot:
    """looked, made, refused: as in tiered.core.copies.SecondCopies."""

    looked: int
    made: int
    refused: int
    lost: LostCounters


@dataclass(frozen=True, slots=True)
class WhySnapshot:
    """What the ring holds, and how many events had to make room."""

    n_events: int
    n_bytes: int
    dropped: int


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """charged_bytes: to all tenants, by the hot tier's books. engines_refused: connections, by reason."""

    standing: Standing
    stats: NodeStats
    blocks_by_state: Mapping[str, int]
    charged_bytes: int
    timings: EngineTimings
    engines_refused: Mapping[str, int]
    moved: DriverCounters
    journal: JournalSnapshot | None
    redis: RedisTierCounters
    peers: PeerCounters
    served: PeerServerCounters
    plans: PlanCounters
    directory: DirectoryFacts
    copies: CopiesSnapshot
    why: WhySnapshot


def copies_snapshot(seconds: SecondCopies | None, lost: LostCounters) -> CopiesSnapshot:
    if seconds is None:
        return CopiesSnapshot(0, 0, 0, lost)
    return CopiesSnapshot(seconds.looked, seconds.made, seconds.refused, lost)


def why_snapshot(ring: WhyRing) -> WhySnapshot:
    return WhySnapshot(len(ring), ring.n_bytes, ring.lost)
