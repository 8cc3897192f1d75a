"""What a replay came to: block hits by tier and by tenant, what was written to Redis, what left and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from tiered.types import TenantId


class Cause(enum.StrEnum):
    """Why a block left the hot tier. An ``Outcome`` counts them against the tenant that lost the block."""

    OWN = "own"
    """Its tenant made room for itself."""
    LIMIT = "limit"
    """Its tenant stood at a limit of its own."""
    RECLAIMED = "reclaimed"
    """Another tenant needed the room."""


@dataclass(slots=True)
class Tally:
    """Blocks by where they were found, and by why they left."""

    accesses: int = 0
    hot_hits: int = 0
    peer_hits: int = 0
    redis_hits: int = 0
    evicted: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))

    @property
    def hits(self) -> int:
        return self.hot_hits + self.peer_hits + self.redis_hits

    @property
    def hit_ratio(self) -> float:
        """Percent of all block accesses, to two decimals."""
        return round(100 * self.hits / max(1, self.accesses), 2)

    def count(self, *, n_blocks: int, hot: int, peer: int = 0, redis: int = 0) -> None:
        self.accesses += n_blocks
        self.hot_hits += hot
        self.peer_hits += peer
        self.redis_hits += redis


@dataclass(slots=True)
class Outcome:
    """``total`` is the sum over ``tenants``. redis_writes: blocks written to Redis."""

    total: Tally = field(default_factory=Tally)
    tenants: dict[TenantId, Tally] = field(default_factory=dict)
    redis_writes: int = 0

    @property
    def evictions(self) -> int:
        return sum(self.total.evicted.values())

    @property
    def moved_blocks(self) -> int:
        """Blocks that crossed the network: fetched from a peer, read from Redis, written to it."""
        return self.total.peer_hits + self.total.redis_hits + self.redis_writes

    def of(self, tenant: TenantId) -> tuple[Tally, Tally]:
        """The two tallies that an event of this tenant counts in."""
        tally = self.tenants.get(tenant)
        if tally is None:
            tally = self.tenants[tenant] = Tally()
        return self.total, tally
