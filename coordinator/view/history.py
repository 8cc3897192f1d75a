"""The last minutes, from one view after another: what was asked and found, who was refused, which nodes went.

Owns how much of that is kept, and in what steps. It is in memory alone, so a replica that has just started knows
little; it reads no clock and asks nobody.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

from coordinator.view.snapshot import NO_TOKENS, ClusterView
from tiered.types import DrainState, Epoch, NodeView, TenantId, TokenCounts

STEP_S: Final = 5.0
POINTS_MAX: Final = 120
"""Ten minutes. A thousand tenants that all ask in every step take some 15 MB."""

GONE_KEPT_S: Final = STEP_S * POINTS_MAX
GONE_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Point:
    """What came in the seconds before ``at``. tokens, refused_blocks: of those tenants that had any. total: of all
    together, added up once."""

    at: float
    seconds: float
    tokens: Mapping[TenantId, TokenCounts]
    total: TokenCounts
    refused_blocks: Mapping[TenantId, int]
    hot_bytes: int
    redis_bytes: int

    def tokens_of(self, tenant: TenantId | None) -> TokenCounts:
        """None: of all together."""
        return self.total if tenant is None else self.tokens.get(tenant, NO_TOKENS)


class Went(enum.Enum):
    """How a node went: its lease ended, it said so itself, or it had been asked to move what it had and go."""

    LAPSED = enum.auto()
    LEFT = enum.auto()
    DRAINED = enum.auto()


@dataclass(frozen=True, slots=True)
class Gone:
    """A life of a node that is over."""

    node: str
    epoch: Epoch
    at: float
    how: Went


@dataclass(frozen=True, slots=True)
class _Counters:
    """Where the counters stood at the last point. A node that starts again lowers the refused ones."""

    at: float
    tokens: Mapping[TenantId, TokenCounts]
    refused_blocks: Mapping[TenantId, int]


class History:
    """Told of every view, by one thread at a time; read by any number."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._last: _Counters | None = None
        self._nodes: dict[str, NodeView] = {}
        self._noted_at = 0.0
        self._gone: dict[tuple[str, Epoch], Gone] = {}

    @property
    def points(self) -> tuple[Point, ...]:
        """Oldest first."""
        return tuple(self._points)

    def gone(self, now: float) -> tuple[Gone, ...]:
        """Of the last minutes, the newest first; without those that are back."""
        kept = [each for each in tuple(self._gone.values()) if now - each.at <= GONE_KEPT_S]
        return tuple(sorted(kept, key=lambda each: -each.at))

    def note(self, view: ClusterView) -> None:
        """A stale view tells nothing new."""
        if view.stale:
            return
        self._note_nodes(view)
        last = self._last
        if last is not None and view.taken_at - last.at < STEP_S:
            return
        now = _counters(view)
        if last is not None:
            self._points.append(_point(last, now, view))
        self._last = now

    def _note_nodes(self, view: ClusterView) -> None:
        alive = {node.info.node: node for node in view.alive}
        lapsed = {node.info.node for node in view.nodes if not node.alive}
        gone = dict(self._gone)
        for name, was in self._nodes.items():
            here = alive.get(name)
            if here is None or here.epoch != was.epoch:
                how = _how(was, lapsed=name in lapsed or self._noted_at + was.lease_left_s <= view.taken_at)
                gone[name, was.epoch] = Gone(name, was.epoch, view.taken_at, how)
        newest = sorted((each for each in gone.values() if each.node not in alive), key=lambda each: each.at)
        self._gone = {(each.node, each.epoch): each for each in newest[-GONE_MAX:]}
        self._nodes, self._noted_at = alive, view.taken_at


def _how(was: NodeView, *, lapsed: bool) -> Went:
    if was.stats.drain.state is not DrainState.NONE:
        return Went.DRAINED
    return Went.LAPSED if lapsed else Went.LEFT


def _counters(view: ClusterView) -> _Counters:
    return _Counters(
        at=view.taken_at,
        tokens={TenantId(tenant.policy.tenant): tenant.tokens for tenant in view.tenants},
        refused_blocks={TenantId(tenant.policy.tenant): tenant.pressure.refused_blocks for tenant in view.tenants},
    )


def _point(last: _Counters, now: _Counters, view: ClusterView) -> Point:
    tokens = dict(_grown_tokens(last.tokens, now.tokens))
    return Point(
        at=now.at,
        seconds=now.at - last.at,
        tokens=tokens,
        total=reduce(TokenCounts.plus, tokens.values(), NO_TOKENS),
        refused_blocks={
            tenant: n - before
            for tenant, n in now.refused_blocks.items()
            if n > (before := last.refused_blocks.get(tenant, 0))
        },
        hot_bytes=view.hot.used_bytes,
        redis_bytes=view.redis.used_bytes,
    )


def _grown_tokens(
    last: Mapping[TenantId, TokenCounts], now: Mapping[TenantId, TokenCounts]
) -> Iterator[tuple[TenantId, TokenCounts]]:
    """Without those that asked nothing. Redis that came back empty has lost counts: that is not a negative number."""
    for tenant, counts in now.items():
        came = counts.minus(last.get(tenant, NO_TOKENS))
        if came.asked:
            hot, peer, redis, missed = (max(0, n) for n in (came.hot, came.peer, came.redis, came.missed))
            yield tenant, TokenCounts(hot + peer + redis + missed, hot, peer, redis, missed)
