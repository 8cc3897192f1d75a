"""What one run is like, drawn by its seed, and what came of it.

Owns the kinds of small runs that there are; a run is :mod:`tests.sim.cluster`'s.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.sim.engine import EnginePace
from tests.sim.node import Pace
from tests.sim.traffic import Multiplied

PACES = ((2e-6, 0.02), (2e-5, 0.02), (5e-4, 0.3))
"""What a byte takes from peer to peer, and a block to be computed: from what nobody notices to what a pool changes
under."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. faults_s, calm_s: for how long; n_faults: how many begin in that time, on average. sample_s: between
    two looks at what must always hold. settle_s: by then all has been put right after the last request: every part of
    a pool is said again within a minute or two, an ended life is swept within some rounds, and the mirrors compare
    their counts every ten seconds; it is compared after quiet_s, and then every compare_s. empty_s: by then
    nothing is left of what was removed."""

    seed: int
    n_nodes: int = 5
    n_coordinators: int = 2
    pool_blocks: int = 300
    partitions: int = 1
    policy: str = "lru"
    demote: str = "evicted"
    faults_s: float = 22.0
    calm_s: float = 6.0
    n_faults: int = 14
    conversations: int = 28
    sample_s: float = 0.2
    byte_s: float = 2e-5
    engine: EnginePace = field(default_factory=EnginePace)
    pace: Pace = field(default_factory=Pace)
    rounds_s: float = 2.0
    idle_s: float = 1.0
    page: int = 40
    audits: bool = True
    quiet_s: float = 0.0
    compare_s: float = 5.0
    settle_s: float = 240.0
    empty_s: float = 120.0
    trace: Multiplied | None = None


def plan_of(seed: int) -> Plan:
    """A small run, of the kinds that there are."""
    rng = random.Random(f"{seed}/plan")
    byte_s, block_compute_s = rng.choice(PACES)
    return Plan(
        seed=seed,
        n_nodes=rng.randint(4, 6),
        n_coordinators=rng.choice((1, 2, 2)),
        pool_blocks=rng.choice((24, 48, 100, 200) if byte_s < 1e-4 else (16, 24, 32)),
        partitions=rng.choice((1, 1, 4)),
        policy=rng.choice(("lru", "lru", "sieve", "s3fifo", "arc", "lfu", "cost", "hazard", "lirs", "fifo")),
        demote=rng.choice(("evicted", "evicted", "reused", "always", "never")),
        n_faults=rng.randint(3, 15),
        byte_s=byte_s,
        engine=EnginePace(block_compute_s),
    )


@dataclass(slots=True)
class Report:
    """What one run came to. settled_s: from the last request until all agreed. sources: tokens by where they were
    found; repairs: partitions of the directory that a node put right; fetched: blocks from peers, and why others were
    not; lost: questions to the shared state that nobody heard the answer of."""

    seed: int
    faults: Mapping[str, int] = field(default_factory=dict)
    simulated_s: float = 0.0
    settled_s: float = 0.0
    requests: int = 0
    sources: Mapping[str, int] = field(default_factory=dict)
    fetched: Mapping[str, int] = field(default_factory=dict)
    repairs: int = 0
    rejoins: int = 0
    questions: int = 0
    lost: int = 0
    hot_blocks: int = 0
    """At the end of the traffic, of all nodes."""
