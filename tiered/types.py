"""The ids and small records that every part speaks; no behaviour and no I/O."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

import msgspec

BlockId = NewType("BlockId", int)
"""A slot in one pool; means nothing outside the worker that owns the pool."""

BlockHash = NewType("BlockHash", bytes)
"""32 bytes: the chained SHA-256 identity of a block's content, the same on every machine."""

TenantId = NewType("TenantId", str)
NodeId = NewType("NodeId", str)
Epoch = NewType("Epoch", int)
NO_EPOCH = Epoch(0)
"""Of a node that never joined; real epochs start above it."""

Ticket = NewType("Ticket", int)
"""Names one unit of transfer work between the core and the movers."""

LeaseId = NewType("LeaseId", int)
"""Names the pins of one request; ends with the request, its connection, or its time."""

HASH_BYTES = 32


class Source(enum.StrEnum):
    """Where a served block came from. The order is nearest first."""

    HOT = "hot"
    PEER = "peer"
    REDIS = "redis"


class TokenCounts(msgspec.Struct, frozen=True):
    """Tokens one tenant asked for, and where each was found: ``asked == hot + peer + redis + missed``."""

    asked: int = 0
    hot: int = 0
    peer: int = 0
    redis: int = 0
    missed: int = 0

    def plus(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            asked=self.asked + other.asked,
            hot=self.hot + other.hot,
            peer=self.peer + other.peer,
            redis=self.redis + other.redis,
            missed=self.missed + other.missed,
        )

    def minus(self, earlier: TokenCounts) -> TokenCounts:
        """What was counted after ``earlier``."""
        return TokenCounts(
            asked=self.asked - earlier.asked,
            hot=self.hot - earlier.hot,
            peer=self.peer - earlier.peer,
            redis=self.redis - earlier.redis,
            missed=self.missed - earlier.missed,
        )


class TenantStats(msgspec.Struct, frozen=True):
    """What one node knows of one tenant; counters grow for this life of the node."""

    tokens: TokenCounts = TokenCounts()
    hot_blocks: int = 0
    hot_bytes: int = 0
    evicted_blocks: int = 0
    demoted_blocks: int = 0
    refused_blocks: int = 0


class NodeStats(msgspec.Struct, frozen=True):
    """One node's snapshot, published with every lease renewal."""

    pool_blocks: int = 0
    free_blocks: int = 0
    block_bytes: int = 0
    engines: int = 0
    layout: str = ""
    tenants: dict[str, TenantStats] = msgspec.field(default_factory=dict)


class NodeInfo(msgspec.Struct, frozen=True):
    """How others reach a node; fixed for one life (one epoch) of it."""

    node: str
    peer_host: str
    peer_port: int
    metrics_port: int
    socket_path: str
    capacity_bytes: int
    pid: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A member as seen from the shared state.

    lease_left_s is 0.0 once the lease has lapsed; the node is then fenced and its directory entries
    do not count, whatever its epoch.
    """

    info: NodeInfo
    epoch: Epoch
    lease_left_s: float
    stats: NodeStats

    @property
    def alive(self) -> bool:
        return self.lease_left_s > 0.0


@dataclass(frozen=True, slots=True)
class Owner:
    """One node's claim to hold a block hot; a hint, the holder decides (I7)."""

    node: NodeId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What the shared state knows of one block below the local hot tier."""

    in_redis: bool
    stored_bytes: int
    owners: tuple[Owner, ...]


NOWHERE = Whereabouts(in_redis=False, stored_bytes=0, owners=())
