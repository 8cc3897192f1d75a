"""The tables' columns: what each shows of a row, what it sorts by, and which rows somebody searches for.

Owns the order of rows. It draws nothing and knows no widget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from tiered.cli.bodies import Node, Tenant
from tiered.cli.output import human_bytes, human_count
from tiered.cli.top.flow import TenantFlow, found
from tiered.cli.top.picture import Picture
from tiered.cli.top.words import NOTHING, bytes_per_second, per_second, share
from tiered.types import DrainState, NodeTraffic

Key: TypeAlias = float | str
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class TenantRow:
    """seconds 0: nothing was compared yet. n_nodes: alive."""

    tenant: Tenant
    flow: TenantFlow
    seconds: float
    n_nodes: int

    @property
    def name(self) -> str:
        return self.tenant.policy.tenant

    def per_s(self, count: float) -> float | None:
        return count / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class NodeRow:
    node: Node
    flow: NodeTraffic
    seconds: float

    @property
    def name(self) -> str:
        return self.node.node

    def per_s(self, count: float) -> float | None:
        return count / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """rising: whether a first sort by it puts the smallest on top, as names are read."""

    title: str
    width: int
    cell: Callable[[Row], str]
    key: Callable[[Row], Key]
    rising: bool = False
    left: bool = False


@dataclass(frozen=True, slots=True)
class Sorting:
    """Which column, and whether the smallest comes first."""

    index: int
    rising: bool


@dataclass(frozen=True, slots=True)
class Form(Generic[Row]):
    """One kind of table. first: how it is sorted until somebody chooses. The first column is the row's name. is_bad:
    whether a row is of something broken."""

    columns: Sequence[Column[Row]]
    first: Sorting
    name: Callable[[Row], str]
    is_bad: Callable[[Row], bool] = lambda row: False

    def arranged(self, rows: Iterable[Row], sorting: Sorting, wanted: str = "") -> list[Row]:
        """Those whose name holds what is wanted, in order; equal ones by name."""
        wanted = wanted.casefold()
        by_name = sorted((row for row in rows if wanted in self.name(row).casefold()), key=self.name)
        return sorted(by_name, key=self.columns[sorting.index].key, reverse=not sorting.rising)

    def beside(self, sorting: Sorting, step: int) -> Sorting:
        """By the next column to the right or left, in the order that suits it."""
        index = (sorting.index + step) % len(self.columns)
        return Sorting(index, self.columns[index].rising)


def tenant_rows(picture: Picture) -> list[TenantRow]:
    flow, n_nodes = picture.flow, picture.sample.stats.nodes.alive
    return [
        TenantRow(each, flow.of_tenant(each.policy.tenant), flow.seconds, n_nodes) for each in picture.sample.tenants
    ]


def node_rows(picture: Picture) -> list[NodeRow]:
    flow = picture.flow
    return [NodeRow(each, flow.of_node(each.node), flow.seconds) for each in picture.sample.nodes]


def node_state(node: Node) -> str:
    if not node.alive:
        return "LOST"
    return "alive" if node.drain.state is DrainState.NONE else node.drain.state.value


def hot_limit_bytes(tenant: Tenant, n_nodes: int) -> int | None:
    """Over all nodes: its limit in all or that of each node alive, whichever is lower. None: neither is known."""
    total, each = tenant.policy.hot_total_limit_bytes, tenant.policy.hot_limit_bytes
    of_nodes = None if each is None or not n_nodes else each * n_nodes
    return min((limit for limit in (total, of_nodes) if limit is not None), default=None)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else -1.0


def _limit(limit_bytes: int | None) -> float:
    return float("inf") if limit_bytes is None else limit_bytes


def _hot_limit(tenant: Tenant, n_nodes: int) -> str:
    policy, limit = tenant.policy, hot_limit_bytes(tenant, n_nodes)
    total, each = policy.hot_total_limit_bytes, policy.hot_limit_bytes
    if each is not None and (total is None or limit != total):
        return f"{human_bytes(each)}/n"
    if limit is None and policy.hot_limit_blocks is not None:
        return f"{human_count(policy.hot_limit_blocks)} blk/n"
    return human_bytes(limit)


def _busy(row: TenantRow) -> float:
    """What was asked a second; before anything could be compared, what was asked at all."""
    rate = row.per_s(row.flow.tokens.asked)
    return row.tenant.tokens.asked if rate is None else rate


def _of_tenant(title: str, width: int, count: Callable[[Tenant], int]) -> Column[TenantRow]:
    return Column(title, width, lambda row: human_bytes(count(row.tenant)), lambda row: count(row.tenant))


def _grown(title: str, width: int, total: Callable[[Tenant], int]) -> Column[TenantRow]:
    return Column(title, width, lambda row: human_count(total(row.tenant)), lambda row: total(row.tenant))


def _tier_share(title: str, field: str) -> Column[TenantRow]:
    def count(row: TenantRow) -> int:
        n: int = getattr(row.tenant.tokens, field)
        return n

    return Column(
        title,
        7,
        lambda row: share(count(row), row.tenant.tokens.asked),
        lambda row: _ratio(count(row), row.tenant.tokens.asked),
    )


TENANTS: Final[Form[TenantRow]] = Form(
    columns=(
        Column("tenant", 18, lambda row: row.name, lambda row: row.name, rising=True, left=True),
        Column(
            "asked/s",
            8,
            lambda row: per_second(row.per_s(row.flow.tokens.asked)).removesuffix("/s"),
            _busy,
        ),
        Column(
            "hit now",
            8,
            lambda row: share(found(row.flow.tokens), row.flow.tokens.asked),
            lambda row: _ratio(found(row.flow.tokens), row.flow.tokens.asked),
        ),
        Column(
            "hit",
            7,
            lambda row: share(found(row.tenant.tokens), row.tenant.tokens.asked),
            lambda row: _ratio(found(row.tenant.tokens), row.tenant.tokens.asked),
        ),
        _of_tenant("hot", 11, lambda tenant: tenant.hot.used_bytes),
        _of_tenant("reserved", 11, lambda tenant: tenant.hot_reserved_in_force_bytes),
        Column(
            "limit",
            12,
            lambda row: _hot_limit(row.tenant, row.n_nodes),
            lambda row: _limit(hot_limit_bytes(row.tenant, row.n_nodes)),
        ),
        _of_tenant("borrowed", 11, lambda tenant: tenant.hot_borrowed_bytes),
        _of_tenant("lent", 11, lambda tenant: tenant.hot_idle_reserved_bytes),
        _of_tenant("redis", 11, lambda tenant: tenant.redis.used_bytes),
        _of_tenant("r.reserved", 11, lambda tenant: tenant.policy.redis_reserved_bytes),
        Column(
            "r.limit",
            11,
            lambda row: human_bytes(row.tenant.redis_limit_in_force_bytes),
            lambda row: _limit(row.tenant.redis_limit_in_force_bytes),
        ),
        _tier_share("hot%", "hot"),
        _tier_share("peer%", "peer"),
        _tier_share("redis%", "redis"),
        _grown("caused", 9, lambda tenant: tenant.pressure.caused_blocks),
        _grown("suffered", 9, lambda tenant: tenant.pressure.suffered_blocks),
        _grown("refused", 9, lambda tenant: tenant.pressure.refused_blocks),
        _grown("asked", 16, lambda tenant: tenant.tokens.asked),
    ),
    first=Sorting(1, rising=False),
    name=lambda row: row.name,
    is_bad=lambda row: row.flow.pressure.refused_blocks > 0,
)


def _traffic(title: str, count: Callable[[NodeTraffic], int]) -> Column[NodeRow]:
    return Column(
        title,
        13,
        lambda row: bytes_per_second(row.per_s(count(row.flow))),
        lambda row: row.per_s(count(row.flow)) or 0.0,
    )


def _used_blocks(node: Node) -> int:
    return node.pool_blocks - node.free_blocks


def _hot_bytes(node: Node) -> int:
    """What a lost node held is gone with it."""
    return node.hot_bytes if node.alive else 0


NODES: Final[Form[NodeRow]] = Form(
    columns=(
        Column("node", 18, lambda row: row.name, lambda row: row.name, rising=True, left=True),
        Column("state", 9, lambda row: node_state(row.node), lambda row: node_state(row.node), rising=True),
        Column("epoch", 14, lambda row: str(row.node.epoch), lambda row: row.node.epoch),
        Column(
            "lease",
            7,
            lambda row: f"{row.node.lease_left_s:.1f} s" if row.node.alive else NOTHING,
            lambda row: row.node.lease_left_s,
            rising=True,
        ),
        Column(
            "pool",
            7,
            lambda row: share(_used_blocks(row.node), row.node.pool_blocks) if row.node.alive else NOTHING,
            lambda row: _ratio(_used_blocks(row.node), row.node.pool_blocks) if row.node.alive else -1.0,
        ),
        Column("hot", 11, lambda row: human_bytes(_hot_bytes(row.node)), lambda row: _hot_bytes(row.node)),
        Column(
            "engines",
            8,
            lambda row: str(row.node.engines) if row.node.alive else NOTHING,
            lambda row: row.node.engines if row.node.alive else -1,
        ),
        _traffic("from peers", lambda traffic: traffic.peer_received_bytes),
        _traffic("to peers", lambda traffic: traffic.peer_sent_bytes),
        _traffic("from redis", lambda traffic: traffic.redis_read_bytes),
        _traffic("to redis", lambda traffic: traffic.redis_written_bytes),
        Column(
            "breaker",
            8,
            lambda row: "OPEN" if row.node.traffic.breaker_open else "closed",
            lambda row: row.node.traffic.breaker_open,
        ),
        Column(
            "to drain",
            9,
            lambda row: (
                NOTHING if row.node.drain.state is DrainState.NONE else human_count(row.node.drain.left_blocks)
            ),
            lambda row: row.node.drain.left_blocks,
        ),
        Column(
            "prefill/s",
            10,
            lambda row: per_second(row.node.rates.prefill_tokens_per_s or None).removesuffix("/s"),
            lambda row: row.node.rates.prefill_tokens_per_s,
        ),
        Column("capacity", 11, lambda row: human_bytes(row.node.capacity_bytes), lambda row: row.node.capacity_bytes),
        Column("address", 24, lambda row: row.node.peer, lambda row: row.node.peer, rising=True),
    ),
    first=Sorting(0, rising=True),
    name=lambda row: row.name,
    is_bad=lambda row: not row.node.alive or row.node.traffic.breaker_open > 0,
)
