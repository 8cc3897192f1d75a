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

NO_HASH = BlockHash(b"")
"""Of the parent of a prefix's first block."""

TenantId = NewType("TenantId", str)
NodeId = NewType("NodeId", str)
Epoch = NewType("Epoch", int)
NO_EPOCH = Epoch(0)
"""Of a node that never joined; real epochs start above it."""

Ticket = NewType("Ticket", int)
"""Names one unit of transfer work between the core and the movers."""

LeaseId = NewType("LeaseId", int)
"""Names the pins of one request; ends with the request, its connection, or its time."""

SequenceId = NewType("SequenceId", int)
"""Names one request's tokens and blocks; ends with drop, or with its connection."""

HASH_BYTES = 32

HINT_CHARS_MAX = 256
HINT_LABELS_MAX = 8
"""Hints are remembered, so they are bounded."""


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


class SecondUse(msgspec.Struct, frozen=True):
    """Of a tenant that asks for two copies, as one node found it when it looked last.

    second_blocks: blocks that are hot and in Redis at once; of several nodes that hold one, the first by name counts
    it. second_bytes: what Redis holds of them. single_blocks: blocks here that are in no other place.
    """

    second_blocks: int = 0
    second_bytes: int = 0
    single_blocks: int = 0

    def plus(self, other: SecondUse) -> SecondUse:
        return SecondUse(
            second_blocks=self.second_blocks + other.second_blocks,
            second_bytes=self.second_bytes + other.second_bytes,
            single_blocks=self.single_blocks + other.single_blocks,
        )


class TenantCurve(msgspec.Struct, frozen=True, array_like=True):
    """What one tenant's lookups at one node say of more or less room, from a sample; see :mod:`tiered.curve`.

    All tokens fade with the same age and are as many as came in the last weight_s. looked_tokens: of the whole
    blocks looked up; prompt_tokens: of those prompts; counted_tokens, own_tokens, hit_tokens, hot_tokens: of the
    lookups that have ended, what was asked for of the cluster, what engines had themselves, what was found, and what
    of that in this node's pool. points: (blocks, looked-up tokens found with room for so many). seen_blocks: distinct
    ones of the last hours. lowest: the first 48 bits of the lowest of their hashes.
    """

    age_s: float
    weight_s: float
    looked_tokens: int
    prompt_tokens: int
    counted_tokens: int
    own_tokens: int
    hit_tokens: int
    hot_tokens: int
    sampled_blocks: int
    seen_blocks: int
    lowest: tuple[int, ...] = ()
    points: tuple[tuple[int, int], ...] = ()


class TenantStats(msgspec.Struct, frozen=True):
    """What one node knows of one tenant; counters grow for this life of the node.

    hot_blocks: shared ones counted whole; hot_bytes: with its part of them. reclaimed_blocks: of those evicted, how
    many left for another tenant; caused_blocks: of other tenants', how many left for this one. wanted_bytes: what
    it was refused, or had to evict of its own, because of its limit. hot_limit_bytes and hot_reserved_bytes: its
    bounds in force here. seconds: of a tenant that asks for two copies. limit_refused_blocks: of those refused, how
    many because of its own limit. saved_s: prefill that its requests were spared, at the rate measured by then.
    """

    tokens: TokenCounts = TokenCounts()
    hot_blocks: int = 0
    hot_bytes: int = 0
    evicted_blocks: int = 0
    demoted_blocks: int = 0
    refused_blocks: int = 0
    reclaimed_blocks: int = 0
    caused_blocks: int = 0
    wanted_bytes: int = 0
    hot_limit_bytes: int | None = None
    hot_reserved_bytes: int = 0
    seconds: SecondUse = SecondUse()
    curve: TenantCurve | None = None
    """Of the tenants that look most up here."""
    limit_refused_blocks: int = 0
    saved_s: float = 0.0

    def minus(self, earlier: TenantStats) -> TenantStats:
        """With only what was counted after ``earlier``."""
        return msgspec.structs.replace(
            self,
            tokens=self.tokens.minus(earlier.tokens),
            evicted_blocks=self.evicted_blocks - earlier.evicted_blocks,
            demoted_blocks=self.demoted_blocks - earlier.demoted_blocks,
            refused_blocks=self.refused_blocks - earlier.refused_blocks,
            reclaimed_blocks=self.reclaimed_blocks - earlier.reclaimed_blocks,
            caused_blocks=self.caused_blocks - earlier.caused_blocks,
            wanted_bytes=self.wanted_bytes - earlier.wanted_bytes,
            limit_refused_blocks=self.limit_refused_blocks - earlier.limit_refused_blocks,
            saved_s=self.saved_s - earlier.saved_s,
        )


class SourceRate(msgspec.Struct, frozen=True):
    """How fast blocks come from one kind of place, as measured: a fetch of n bytes takes latency_s + n / bytes_per_s.

    bytes_per_s 0: never measured.
    """

    latency_s: float = 0.0
    bytes_per_s: float = 0.0


class NodeRates(msgspec.Struct, frozen=True):
    """What a node has measured of its sources and its engines.

    peers: of fetches from any peer; redis likewise. prefill_tokens_per_s: of the attached engines, 0 while none has
    said. waiting_s: for how long the fetches that wait now will keep the movers busy.
    """

    peers: SourceRate = SourceRate()
    redis: SourceRate = SourceRate()
    prefill_tokens_per_s: float = 0.0
    waiting_s: float = 0.0


class NodeTraffic(msgspec.Struct, frozen=True):
    """Payload bytes between a node and its sources; counters of this life of the node. breaker_open: 1 while it
    leaves Redis alone after repeated failures, else 0."""

    peer_received_bytes: int = 0
    peer_sent_bytes: int = 0
    redis_read_bytes: int = 0
    redis_written_bytes: int = 0
    breaker_open: int = 0

    def minus(self, earlier: NodeTraffic) -> NodeTraffic:
        """What was counted after ``earlier``, and the breaker as it is."""
        return NodeTraffic(
            peer_received_bytes=self.peer_received_bytes - earlier.peer_received_bytes,
            peer_sent_bytes=self.peer_sent_bytes - earlier.peer_sent_bytes,
            redis_read_bytes=self.redis_read_bytes - earlier.redis_read_bytes,
            redis_written_bytes=self.redis_written_bytes - earlier.redis_written_bytes,
            breaker_open=self.breaker_open,
        )


class DrainState(enum.StrEnum):
    """How far a node is on its way out."""

    NONE = "none"
    DRAINING = "draining"
    """Admits nothing new; what nobody else has is on its way to Redis."""
    DRAINED = "drained"
    """Nothing is left to move; it leaves, or has left, the cluster."""


class DrainProgress(msgspec.Struct, frozen=True):
    """Of the blocks that were in no other place when the drain began: left to move, and moved. stuck: of those left,
    how many Redis did not take when it was asked last."""

    state: DrainState = DrainState.NONE
    left_blocks: int = 0
    moved_blocks: int = 0
    stuck_blocks: int = 0


class PrefixUse(msgspec.Struct, frozen=True, array_like=True):
    """The first n_blocks blocks of some prompts, as one node has used them. block_hash: of the last of them, in hex.
    hits: matches that used all of them, since this node has them. tenant: who brought the last of them here. within:
    the longest of those named with it that it begins with, by that one's block_hash; empty for none."""

    tenant: str
    block_hash: str
    n_blocks: int
    hits: int
    within: str = ""


class NodeStats(msgspec.Struct, frozen=True):
    """One node's snapshot, published with every lease renewal.

    No field holds bytes: a script unpacks it, and Redis' MessagePack knows text alone.

    scopes: those of the attached engines, each as ``hashing.scope.encode_scope`` has it, so that others can name the
    hashes of a prompt here.
    """

    pool_blocks: int = 0
    free_blocks: int = 0
    block_bytes: int = 0
    engines: int = 0
    layout: str = ""
    tenants: dict[str, TenantStats] = msgspec.field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    rates: NodeRates = NodeRates()
    drain: DrainProgress = DrainProgress()
    prefixes: tuple[PrefixUse, ...] = ()
    """Those used most here; a few."""
    traffic: NodeTraffic = NodeTraffic()


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
    instance: str = ""
    """Names the process, so that it can tell its own entry from another's of the same name."""


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


class Continues(enum.StrEnum):
    """Whether the caller expects another request that begins with this one's tokens."""

    UNKNOWN = "unknown"
    YES = "yes"
    NO = "no"


class Hints(msgspec.Struct, frozen=True, array_like=True):
    """What a caller knows of a request beyond its tokens. All of it may be wrong: policies learn what it is worth.

    continues:     whether this conversation goes on.
    ttl_s:         nobody will ask for it again after this many idle seconds.
    session:       the caller's own name of the conversation, for a later ``close``.
    labels:        what kind of request it is, such as its model or tool list: kinds that policies may tell apart.
    output_tokens: how long the answer was, once that is known.

    Errors: ValueError naming the field.
    """

    continues: Continues = Continues.UNKNOWN
    ttl_s: float | None = None
    session: str = ""
    labels: tuple[str, ...] = ()
    output_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.ttl_s is not None and not 0 <= self.ttl_s < float("inf"):
            raise ValueError(f"hints.ttl_s: {self.ttl_s} is not a number of seconds from 0 on")
        if len(self.session) > HINT_CHARS_MAX:
            raise ValueError(f"hints.session: {len(self.session)} characters are more than {HINT_CHARS_MAX}")
        if len(self.labels) > HINT_LABELS_MAX or any(len(label) > HINT_CHARS_MAX for label in self.labels):
            raise ValueError(
                f"hints.labels: at most {HINT_LABELS_MAX} labels of at most {HINT_CHARS_MAX} characters each"
            )
        if self.output_tokens is not None and self.output_tokens < 0:
            raise ValueError(f"hints.output_tokens: {self.output_tokens} is not a number of tokens")


NO_HINTS = Hints()


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What the shared state knows of one block below the local hot tier."""

    in_redis: bool
    stored_bytes: int
    owners: tuple[Owner, ...]


NOWHERE = Whereabouts(in_redis=False, stored_bytes=0, owners=())


class Happening(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened to a block, for whoever asks why it is, or is not, where it is.

    what: one lower-case word, such as ``stored``, ``evicted``, ``refused``; of several blocks of one prefix it is
    said once, with the hash of the first of them and n_blocks. detail: the numbers and names at that moment.
    """

    what: str
    block_hash: BlockHash
    tenant: str
    tier: str = Source.HOT.value
    n_blocks: int = 1
    detail: dict[str, int | float | str] = {}


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A happening, as somebody remembers it. seq: grows with each, for the life of whoever tells. at: seconds since
    1970 by that machine's clock."""

    seq: int
    at: float
    happening: Happening


class BlockHere(msgspec.Struct, frozen=True, array_like=True):
    """What one node says of a block that its pool holds. idle: uses of the pool's blocks since its last."""

    block_hash: BlockHash
    state: str
    tenants: tuple[str, ...]
    hits: int
    pins: int
    depth: int
    idle: int
