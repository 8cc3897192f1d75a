"""What the coordinator's HTTP API answers, as records: shapes alone, for who calls it and who prints it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from tiered.types import DrainProgress, NodeRates, NodeTraffic, TokenCounts


class Policy(msgspec.Struct, frozen=True):
    """A tenant's bounds in force; None means "no limit of its own"."""

    tenant: str
    hot_reserved_bytes: int
    hot_limit_bytes: int | None
    redis_reserved_bytes: int
    redis_limit_bytes: int | None
    weight: float
    over_quota: str
    hot_reserved_blocks: int = 0
    hot_limit_blocks: int | None = None
    hot_total_reserved_bytes: int = 0
    hot_total_limit_bytes: int | None = None
    sharing: str = "private"
    redis_codec: str = "none"
    redis_ttl_s: float | None = None
    copies: int = 1


class HotUse(msgspec.Struct, frozen=True):
    used_bytes: int
    blocks: int


class RedisUse(msgspec.Struct, frozen=True):
    used_bytes: int
    pending_bytes: int
    blocks: int


class Seconds(msgspec.Struct, frozen=True):
    """Of a tenant with two copies: blocks that are hot and in Redis, in Redis alone, and in one node alone."""

    second_blocks: int
    second_bytes: int
    redis_only_blocks: int
    single_blocks: int


class Pressure(msgspec.Struct, frozen=True):
    """Blocks of the hot tier, of the present lives of the nodes. suffered: evicted for another tenant."""

    evicted_blocks: int = 0
    suffered_blocks: int = 0
    caused_blocks: int = 0
    refused_blocks: int = 0


class Tenant(msgspec.Struct, frozen=True):
    policy: Policy
    named: bool
    hot: HotUse
    redis: RedisUse
    tokens: TokenCounts
    seconds: Seconds | None = None
    hot_reserved_in_force_bytes: int = 0
    hot_lent_bytes: int | None = None
    redis_limit_in_force_bytes: int | None = None
    hot_borrowed_bytes: int = 0
    hot_idle_reserved_bytes: int = 0
    pressure: Pressure = Pressure()


class Node(msgspec.Struct, frozen=True):
    node: str
    epoch: int
    alive: bool
    lease_left_s: float
    peer: str
    metrics_port: int
    socket_path: str
    capacity_bytes: int
    pool_blocks: int
    free_blocks: int
    block_bytes: int
    engines: int
    layout: str
    hot_bytes: int
    version: str
    drain: DrainProgress = DrainProgress()
    scopes: list[str] = []
    pid: int = 0
    rates: NodeRates = NodeRates()
    traffic: NodeTraffic = NodeTraffic()


class HotTier(msgspec.Struct, frozen=True):
    bytes: int
    blocks: int
    capacity_bytes: int


class RedisTier(msgspec.Struct, frozen=True):
    bytes: int
    pending_bytes: int
    blocks: int
    capacity_bytes: int | None = None


class Tiers(msgspec.Struct, frozen=True):
    hot: HotTier
    redis: RedisTier


class NodeCounts(msgspec.Struct, frozen=True):
    alive: int
    known: int


class Stats(msgspec.Struct, frozen=True):
    """Sums over the cluster; stale means that Redis could not be read the last time. saved_prefill_s: of the present
    lives of the nodes; None of a coordinator too old to say."""

    tokens: TokenCounts
    by_tenant: dict[str, TokenCounts]
    tiers: Tiers
    nodes: NodeCounts
    stale: bool
    is_leader: bool = False
    leader: str | None = None
    leader_token: int = 0
    age_s: float = 0.0
    redis_conserved: bool | None = None
    saved_prefill_s: float | None = None


class Alert(msgspec.Struct, frozen=True):
    """What needs a person's eye. level: alarm, warning or note, or what a newer coordinator calls it; age_s: since it
    happened last, None where that is not known."""

    level: str
    about: str
    text: str
    node: str | None = None
    age_s: float | None = None


class UsageRow(msgspec.Struct, frozen=True):
    """One tenant's bytes in one place; node None is the shared tier."""

    tenant: str
    tier: str
    node: str | None
    bytes: int
    blocks: int
    limit_bytes: int | None = None
    reserved_bytes: int = 0


class AccessToken(msgspec.Struct, frozen=True):
    """A tenant's token, without itself; expires_at None: it does not end by itself."""

    id: str
    label: str
    created_at: datetime
    expires_at: datetime | None = None


class NewAccessToken(AccessToken, frozen=True, kw_only=True):
    token: str


class _AccessTokens(msgspec.Struct, frozen=True):
    tokens: list[AccessToken]
