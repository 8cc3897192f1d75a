"""What a dashboard page shows, as words and plain rows made from one view of the cluster.

Owns how numbers are worded. Pages are handed the result and never touch live state; nothing here touches a
page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coordinator.view.snapshot import ClusterView, TenantView, peer_address
from tiered.types import NodeView

Row = dict[str, str | int | float | bool]
"""One row of a table: column name -> value; numbers stay numbers so that columns sort."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Tile:
    """One number worth a glance. filled is None when it is a share of nothing."""

    label: str
    value: str
    detail: str
    filled: float | None = None


@dataclass(frozen=True, slots=True)
class DashboardView:
    state: str
    warning: str
    tiles: tuple[Tile, ...]
    tenants: tuple[Row, ...]
    nodes: tuple[Row, ...]


def dashboard_view(view: ClusterView, *, age_s: float) -> DashboardView:
    alive, known = len(view.alive), len(view.nodes)
    lapsed = f", {known - alive} lapsed" if known > alive else ""
    return DashboardView(
        state=f"{alive} {'node' if alive == 1 else 'nodes'} alive{lapsed}",
        warning=f"These numbers are {seconds(age_s)} old. {view.reason}" if view.stale else "",
        tiles=_tiles(view),
        tenants=tuple(_tenant_row(tenant) for tenant in view.tenants),
        nodes=tuple(_node_row(node) for node in view.nodes),
    )


def _tiles(view: ClusterView) -> tuple[Tile, ...]:
    tokens, capacity = view.tokens, view.hot_capacity_bytes
    return (
        Tile(
            "Hot tier",
            size(view.hot.used_bytes),
            f"of {size(capacity)}, {count(view.hot.blocks)} blocks",
            share(view.hot.used_bytes, capacity),
        ),
        Tile(
            "Redis tier",
            size(view.redis.used_bytes),
            f"{count(view.redis.blocks)} blocks, {size(view.redis.pending_bytes)} pending",
        ),
        *(
            Tile(
                label,
                count(found),
                f"{percent(found, tokens.asked)} of tokens asked",
                share(found, tokens.asked),
            )
            for label, found in (
                ("Hot hits", tokens.hot),
                ("Peer hits", tokens.peer),
                ("Redis hits", tokens.redis),
                ("Missed", tokens.missed),
            )
        ),
    )


def _tenant_row(tenant: TenantView) -> Row:
    tokens, policy = tenant.tokens, tenant.policy
    return {
        "tenant": policy.tenant,
        "named": tenant.named,
        "asked": tokens.asked,
        "asked_text": count(tokens.asked),
        **{
            column: round(100 * found / tokens.asked, 1) if tokens.asked else 0.0
            for column, found in (
                ("hot_share", tokens.hot),
                ("peer_share", tokens.peer),
                ("redis_share", tokens.redis),
                ("missed_share", tokens.missed),
            )
        },
        "hot_bytes": tenant.hot.used_bytes,
        "hot_text": size(tenant.hot.used_bytes),
        "hot_limit": f"of {size(policy.hot_limit_bytes)} per node"
        if policy.hot_limit_bytes is not None
        else "no limit",
        "redis_bytes": tenant.redis.used_bytes,
        "redis_text": size(tenant.redis.used_bytes),
        "redis_limit": f"of {size(policy.redis_limit_bytes)}" if policy.redis_limit_bytes is not None else "no limit",
        "redis_filled": share(tenant.redis.used_bytes, policy.redis_limit_bytes or 0) or 0.0,
    }


def _node_row(node: NodeView) -> Row:
    stats = node.stats
    used = stats.pool_blocks - stats.free_blocks
    return {
        "node": node.info.node,
        "epoch": int(node.epoch),
        "alive": node.alive,
        "state": "alive" if node.alive else "lapsed",
        "lease_left_s": round(node.lease_left_s, 1),
        "lease": seconds(node.lease_left_s) if node.alive else "-",
        "pool_used": used,
        "pool": f"{count(used)} of {count(stats.pool_blocks)}" if stats.pool_blocks else "no pool yet",
        "pool_filled": share(used, stats.pool_blocks) or 0.0,
        "engines": stats.engines,
        "peer": peer_address(node),
    }


def size(n_bytes: int) -> str:
    """1536 -> "1.5 KiB"."""
    value = float(n_bytes)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def count(n: int) -> str:
    """1234567 -> "1.23M"; exact below ten thousand."""
    for unit, scale in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= scale and n >= 10_000:
            return f"{n / scale:.3g}{unit}" if n < 999.5 * scale else f"{n / scale:.0f}{unit}"
    return str(n)


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else f"{value / 60:.0f} min"


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "0%"


def share(part: int, whole: int) -> float | None:
    """part / whole within 0 to 1, or None when there is no whole."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else None
