"""The cluster at one moment, as plain frozen records; and the arithmetic that makes them.

Owns the sums that the API, the dashboard and the metrics show, so that all three agree. It reads no clock
and no Redis: :mod:`coordinator.view.reader` brings what was read.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from tiered.cluster.ledger import RedisUsage
from tiered.cluster.shares import Lent, Record
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import NodeId, NodeView, SecondUse, TenantId, TenantStats, TokenCounts

NO_TOKENS: Final = TokenCounts()
NO_SECONDS: Final = SecondUse()
NO_REDIS: Final = RedisUsage(used_bytes=0, pending_bytes=0, blocks=0)


@dataclass(frozen=True, slots=True)
class HotUse:
    """What lies in the pools of the nodes that are alive."""

    used_bytes: int = 0
    blocks: int = 0


NO_HOT: Final = HotUse()


@dataclass(frozen=True, slots=True)
class Pressure:
    """Who took room from whom, summed over the nodes listed; counters of their lives, so a restart lowers them.

    evicted_blocks: all of the tenant's that left a pool; suffered_blocks: of those, for another tenant;
    caused_blocks: of others', for this one. own_bytes: what it holds on nodes alive within what each reserves for it.
    """

    evicted_blocks: int = 0
    suffered_blocks: int = 0
    caused_blocks: int = 0
    refused_blocks: int = 0
    own_bytes: int = 0

    def plus(self, stats: TenantStats, *, alive: bool) -> Pressure:
        return Pressure(
            evicted_blocks=self.evicted_blocks + stats.evicted_blocks,
            suffered_blocks=self.suffered_blocks + stats.reclaimed_blocks,
            caused_blocks=self.caused_blocks + stats.caused_blocks,
            refused_blocks=self.refused_blocks + stats.refused_blocks,
            own_bytes=self.own_bytes + (min(stats.hot_bytes, stats.hot_reserved_bytes) if alive else 0),
        )


NO_PRESSURE: Final = Pressure()


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant: the policy in force, what it holds, and where its tokens were found.

    named is False for a tenant that was seen but has no policy of its own: it then lives under the default's.
    """

    policy: TenantPolicy
    named: bool
    hot: HotUse
    redis: RedisUsage
    tokens: TokenCounts
    hot_reserved_in_force_bytes: int = 0
    """What the nodes alive keep for it, of what was promised per node and in total."""
    hot_lent_bytes: int | None = None
    """What they were lent of its total limit; None where it has none."""
    redis_limit_in_force_bytes: int | None = None
    """Its own, or where it has none the default's, which then bounds it by itself."""
    seconds: SecondUse = NO_SECONDS
    """Of a tenant that asks for two copies, as the nodes alive found it when they looked last."""
    pressure: Pressure = NO_PRESSURE

    @property
    def hot_borrowed_bytes(self) -> int:
        """What it holds beyond its reservations, which others may ask back."""
        return max(0, self.hot.used_bytes - self.pressure.own_bytes)

    @property
    def hot_idle_reserved_bytes(self) -> int:
        """What is kept for it and others use meanwhile, or nobody."""
        return max(0, self.hot_reserved_in_force_bytes - self.pressure.own_bytes)

    @property
    def redis_only_blocks(self) -> int:
        """Blocks in Redis that are in no node's hot tier, as far as the nodes have looked."""
        return max(0, self.redis.blocks - self.seconds.second_blocks)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One tenant's bytes in one place, and its bounds in force there; node is None for the shared tier."""

    tenant: str
    tier: Literal["hot", "redis"]
    node: str | None
    used_bytes: int
    blocks: int
    limit_bytes: int | None = None
    reserved_bytes: int = 0
    second_blocks: int = 0
    """Of those in Redis, of a tenant that asks for two copies: blocks that are hot too."""
    second_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Readings:
    """What was read of the shared state, before any arithmetic."""

    nodes: tuple[NodeView, ...] = ()
    policies: Mapping[TenantId, TenantPolicy] = field(default_factory=dict)
    redis: Mapping[TenantId, RedisUsage] = field(default_factory=dict)
    retired: Mapping[TenantId, TokenCounts] = field(default_factory=dict)
    lent: Mapping[NodeId, Record] = field(default_factory=dict)
    """What each node was lent of the tenants' totals."""
    redis_capacity_bytes: int | None = None


class Trouble(enum.Enum):
    """Why a view is stale, in words for everybody."""

    NOT_READ_YET = "Redis has not been read yet"
    NO_ANSWER = "Redis does not answer, or refuses to"
    NOT_READABLE = "Redis answers, and something that it holds cannot be read"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Everything one page or one scrape may ask for. taken_at is on the replica's own clock, in seconds.

    trouble: what went wrong the last time, if anything; the numbers are then those of taken_at. reason tells it
    with the error, which may say where Redis is. was_read: whether it ever was; until then the numbers are zeros that
    nobody has counted.
    """

    nodes: tuple[NodeView, ...] = ()
    tenants: tuple[TenantView, ...] = ()
    usage: tuple[UsageRow, ...] = ()
    tokens: TokenCounts = NO_TOKENS
    hot: HotUse = NO_HOT
    hot_capacity_bytes: int = 0
    redis: RedisUsage = NO_REDIS
    redis_capacity_bytes: int | None = None
    """Of the Redis tier; None while it is unbounded."""
    taken_at: float = 0.0
    was_read: bool = False
    trouble: Trouble | None = Trouble.NOT_READ_YET
    reason: str = Trouble.NOT_READ_YET.value

    @property
    def stale(self) -> bool:
        return self.trouble is not None

    @property
    def alive(self) -> tuple[NodeView, ...]:
        return tuple(node for node in self.nodes if node.alive)

    def tenant(self, name: str) -> TenantView | None:
        return next((tenant for tenant in self.tenants if tenant.policy.tenant == name), None)

    def age_s(self, now: float) -> float:
        return max(0.0, now - self.taken_at)


def assemble(readings: Readings, *, taken_at: float) -> ClusterView:
    """Turn readings into the view.

    A tenant's tokens are those of every node still listed, alive or not, and those of the lives that were
    retired. A node leaves the list and joins the retired sum in one step, so the number never goes down
    when a node dies.
    """
    nodes = sorted(readings.nodes, key=lambda node: node.info.node)
    alive = [node for node in nodes if node.alive]
    sums = _sum_up(nodes, readings.retired)
    default = readings.policies.get(DEFAULT_TENANT, TenantPolicy(tenant=DEFAULT_TENANT))
    names = {DEFAULT_TENANT, *readings.policies, *readings.redis, *sums}
    tenants = []
    for name in sorted(names):
        policy = readings.policies.get(name) or default.of_unnamed(name)
        found = sums.get(name, _Sum())
        tenants.append(
            TenantView(
                policy=policy,
                named=name in readings.policies or name == DEFAULT_TENANT,
                hot=found.hot,
                redis=readings.redis.get(name, NO_REDIS),
                tokens=found.tokens,
                hot_reserved_in_force_bytes=_reserved_in_force(policy, alive, readings.lent),
                hot_lent_bytes=_lent_in_force(policy, alive, readings.lent),
                redis_limit_in_force_bytes=_redis_limit_in_force(policy, default),
                seconds=found.seconds,
                pressure=found.pressure,
            )
        )
    return ClusterView(
        nodes=tuple(nodes),
        tenants=tuple(tenants),
        usage=(*_hot_rows(alive), *_redis_rows(tenants)),
        tokens=_sum_tokens(found.tokens for found in sums.values()),
        hot=HotUse(
            used_bytes=sum(found.hot.used_bytes for found in sums.values()),
            blocks=sum(found.hot.blocks for found in sums.values()),
        ),
        hot_capacity_bytes=sum(node.info.capacity_bytes for node in alive),
        redis=RedisUsage(
            used_bytes=sum(use.used_bytes for use in readings.redis.values()),
            pending_bytes=sum(use.pending_bytes for use in readings.redis.values()),
            blocks=sum(use.blocks for use in readings.redis.values()),
        ),
        redis_capacity_bytes=readings.redis_capacity_bytes,
        taken_at=taken_at,
        was_read=True,
        trouble=None,
        reason="",
    )


def peer_address(node: NodeView) -> str:
    """``host:port`` of the node's block server, with an IPv6 address in brackets."""
    host = node.info.peer_host
    return f"[{host}]:{node.info.peer_port}" if ":" in host else f"{host}:{node.info.peer_port}"


@dataclass(slots=True)
class _Sum:
    """One tenant's, over the nodes; of hot and seconds, over those alive."""

    tokens: TokenCounts = NO_TOKENS
    hot: HotUse = NO_HOT
    seconds: SecondUse = NO_SECONDS
    pressure: Pressure = NO_PRESSURE

    def add(self, stats: TenantStats, *, alive: bool) -> None:
        self.tokens = self.tokens.plus(stats.tokens)
        self.pressure = self.pressure.plus(stats, alive=alive)
        if alive:
            self.seconds = self.seconds.plus(stats.seconds)
        if alive and stats.hot_blocks:
            self.hot = HotUse(self.hot.used_bytes + stats.hot_bytes, self.hot.blocks + stats.hot_blocks)


def _sum_up(nodes: Sequence[NodeView], retired: Mapping[TenantId, TokenCounts]) -> dict[TenantId, _Sum]:
    sums = {tenant: _Sum(tokens) for tenant, tokens in retired.items()}
    for node in nodes:
        for name, stats in node.stats.tenants.items():
            sums.setdefault(TenantId(name), _Sum()).add(stats, alive=node.alive)
    return sums


def _hot_rows(alive: Sequence[NodeView]) -> Iterator[UsageRow]:
    for node in alive:
        for tenant, stats in sorted(node.stats.tenants.items()):
            if stats.hot_blocks:
                yield UsageRow(
                    tenant,
                    "hot",
                    node.info.node,
                    stats.hot_bytes,
                    stats.hot_blocks,
                    limit_bytes=stats.hot_limit_bytes,
                    reserved_bytes=stats.hot_reserved_bytes,
                )


def _redis_limit_in_force(policy: TenantPolicy, default: TenantPolicy) -> int | None:
    return default.redis_limit_bytes if policy.redis_limit_bytes is None else policy.redis_limit_bytes


def _redis_rows(tenants: Sequence[TenantView]) -> Iterator[UsageRow]:
    for tenant in tenants:
        if tenant.redis.blocks or tenant.redis.used_bytes:
            yield UsageRow(
                tenant.policy.tenant,
                "redis",
                None,
                tenant.redis.used_bytes,
                tenant.redis.blocks,
                limit_bytes=tenant.redis_limit_in_force_bytes,
                reserved_bytes=tenant.policy.redis_reserved_bytes,
                second_blocks=tenant.seconds.second_blocks,
                second_bytes=tenant.seconds.second_bytes,
            )


def _reserved_in_force(policy: TenantPolicy, alive: Sequence[NodeView], lent: Mapping[NodeId, Record]) -> int:
    kept = 0
    for node in alive:
        here = _lent_to(node, lent, policy.tenant)
        per_node = max(policy.hot_reserved_bytes, policy.hot_reserved_blocks * node.stats.block_bytes)
        kept += max(per_node, 0 if here is None else here.reserved_bytes)
    return kept


def _lent_in_force(policy: TenantPolicy, alive: Sequence[NodeView], lent: Mapping[NodeId, Record]) -> int | None:
    if policy.hot_total_limit_bytes is None:
        return None
    shares = (_lent_to(node, lent, policy.tenant) for node in alive)
    return sum(share.limit_bytes or 0 for share in shares if share is not None)


def _lent_to(node: NodeView, lent: Mapping[NodeId, Record], tenant: str) -> Lent | None:
    record = lent.get(NodeId(node.info.node))
    return record.tenants.get(tenant) if record is not None and record.epoch == node.epoch else None


def _sum_tokens(counts: Iterable[TokenCounts]) -> TokenCounts:
    total = NO_TOKENS
    for count in counts:
        total = total.plus(count)
    return total
