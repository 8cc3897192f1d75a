"""What more or less memory would buy a tenant: the curves of its nodes put together, and read at other sizes.

A decision over plain values. Curves come from :mod:`tiered.curve`, one of each node over the lookups it got; bytes
and bounds from the cluster's view.

**Together.** Each node sees its part of the tenant's stream. Room that all share is filled by all, so a node's curve
is read at a part of it: as much as the node's blocks are of all distinct ones. Where nodes see different blocks, that
is their share of the traffic; where all see the same ones, it is everything. How much they see in common, the lowest
hashes of their samples say: the same hashes are sampled everywhere. What one node brings and another asks for the
first time counts as missed, so for tenants that are spread over nodes the result is a little low.

**Room.** What a tenant has is what its blocks take now, in full-size bytes: hot ones once, however many nodes hold
them, and those in Redis. A block in both counts twice, save where the nodes look for second copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from coordinator.view.snapshot import ClusterView, TenantView
from tiered.curve.histogram import hits_at
from tiered.tenancy.policy import TenantPolicy
from tiered.types import NodeView, TenantCurve

Tier = Literal["hot", "redis"]
TIERS: Final[tuple[Tier, ...]] = ("hot", "redis")

STEPS: Final = (0.10, 0.25, 1.00)
"""Of what a tier holds of the tenant: the changes that are looked at unasked."""

POINTS_MAX: Final = 64
_HOUR_S: Final = 3_600
_SKETCH_RANGE: Final = 1 << 48
_LEAST_WEIGHT_S: Final = 1.0
"""Rates over less than a second say nothing."""


@dataclass(frozen=True, slots=True)
class TierRoom:
    """One tier of all nodes together; limit_bytes None: no limit of the tenant's own."""

    used_bytes: int
    blocks: int
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class Ratios:
    """Parts of the tokens asked for: found anywhere, and found in the pool of the node that was asked."""

    hit: float
    hot: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """more_bytes: as the tier counts them; bytes: what it would hold. points, hot_points: of the hit ratios, in
    percent. tokens_per_hour: found more. prefill_s_per_hour: computed less; None where no engine said its rate."""

    tier: Tier
    more_bytes: int
    bytes: int
    ratios: Ratios
    points: float
    hot_points: float
    tokens_per_hour: float
    prefill_s_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """since_s: for how long the oldest of the nodes' curves has been drawn. room_bytes: see above. measured: None
    before any lookup has ended. curve: (bytes, hit ratio). seen_bytes: of the distinct blocks of the last hours."""

    tenant: str
    n_nodes: int
    since_s: float
    sampled_blocks: int
    seen_bytes: int
    asked_per_hour: float
    prefill_tokens_per_s: float | None
    hot: TierRoom
    redis: TierRoom
    room_bytes: int
    measured: Ratios | None
    predicted: Ratios
    curve: tuple[tuple[int, float], ...]
    what_if: tuple[WhatIf, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """One node's curve. share: the part of shared room at which it is read. hot_blocks: the tenant's here."""

    curve: TenantCurve
    block_bytes: int
    hot_blocks: int
    prefill_tokens_per_s: float
    share: float = 1.0

    @property
    def weight_s(self) -> float:
        return max(_LEAST_WEIGHT_S, self.curve.weight_s)

    @property
    def asked_per_s(self) -> float:
        """What engines had themselves was not asked for."""
        return max(0, self.curve.prompt_tokens - self.curve.own_tokens) / self.weight_s

    def hit_per_s(self, n_bytes: float) -> float:
        hits = hits_at(self.curve.points, n_bytes / self.block_bytes) - self.curve.own_tokens
        return min(max(0.0, hits) / self.weight_s, self.asked_per_s)


def capacities(view: ClusterView) -> list[TenantView]:
    """The tenants of whom any node alive has a curve, those with most lookups first."""
    looked: Counter[str] = Counter()
    for node in view.alive:
        for name, stats in node.stats.tenants.items():
            if stats.curve is not None:
                looked[name] += stats.curve.looked_tokens
    drawn = [tenant for tenant in view.tenants if tenant.policy.tenant in looked]
    return sorted(drawn, key=lambda tenant: -looked[tenant.policy.tenant])


def capacity_of(view: ClusterView, tenant: TenantView, *, more: Sequence[tuple[Tier, int]] = ()) -> Capacity | None:
    """None where no node has seen it look anything up of late. more: changes to look at besides the usual ones."""
    name = tenant.policy.tenant
    parts = _parts(view.alive, name)
    if not parts:
        return None
    return _Reading(view, tenant, parts).capacity(more)


class _Reading:
    """One tenant's parts, and the arithmetic over them."""

    def __init__(self, view: ClusterView, tenant: TenantView, parts: Sequence[_Part]) -> None:
        self._view, self._tenant, self._parts = view, tenant, parts
        self._asked = sum(part.asked_per_s for part in parts)
        self._block_bytes = _mean([(part.block_bytes, part.asked_per_s) for part in parts])
        seen = sum(part.curve.seen_blocks for part in parts)
        self._distinct = min(1.0, distinct_blocks([part.curve for part in parts]) / seen) if seen else 1.0
        stored = tenant.redis.used_bytes / tenant.redis.blocks if tenant.redis.blocks else 0.0
        self._stored_bytes = stored or self._block_bytes
        in_redis_alone = max(0, tenant.redis.blocks - tenant.seconds.second_blocks)
        self._room = tenant.hot.blocks * self._block_bytes * self._distinct + in_redis_alone * self._block_bytes
        self._n_hot = sum(part.hot_blocks for part in parts)
        self._now = Ratios(self._hit(self._room), self._hot_hit(0))

    def capacity(self, more: Sequence[tuple[Tier, int]]) -> Capacity:
        tenant, parts = self._tenant, self._parts
        hot = TierRoom(tenant.hot.used_bytes, tenant.hot.blocks, _hot_limit(self._view, tenant.policy))
        redis = TierRoom(tenant.redis.used_bytes, tenant.redis.blocks, tenant.redis_limit_in_force_bytes)
        used: dict[Tier, int] = {"hot": hot.used_bytes, "redis": redis.used_bytes}
        asked = [(tier, round(used[tier] * step)) for tier in TIERS for step in STEPS if used[tier]]
        measured = sum(part.curve.counted_tokens / part.weight_s for part in parts)
        sizes = sorted(
            {round(size * part.block_bytes / part.share) for part in parts for size, _ in part.curve.points}
        )
        return Capacity(
            tenant=tenant.policy.tenant,
            n_nodes=len(parts),
            since_s=max(part.curve.age_s for part in parts),
            sampled_blocks=sum(part.curve.sampled_blocks for part in parts),
            seen_bytes=round(self._distinct * sum(part.curve.seen_blocks * part.block_bytes for part in parts)),
            asked_per_hour=self._asked * _HOUR_S,
            prefill_tokens_per_s=self._prefill(),
            hot=hot,
            redis=redis,
            room_bytes=round(self._room),
            measured=None
            if not measured
            else Ratios(
                sum(part.curve.hit_tokens / part.weight_s for part in parts) / measured,
                sum(part.curve.hot_tokens / part.weight_s for part in parts) / measured,
            ),
            predicted=self._now,
            curve=tuple((size, self._hit(size)) for size in _thinned(sizes)),
            what_if=tuple(self._what_if(tier, change, used[tier]) for tier, change in (*asked, *more)),
        )

    def _hit(self, n_bytes: float) -> float:
        """With room for so many bytes that all nodes share."""
        found = sum(part.hit_per_s(n_bytes * part.share) for part in self._parts)
        return found / self._asked if self._asked else 0.0

    def _hot_hit(self, more_bytes: float) -> float:
        """With so many more in the nodes' pools, dealt as those are now."""
        found = 0.0
        for part in self._parts:
            of_it = part.hot_blocks / self._n_hot if self._n_hot else 1 / len(self._parts)
            found += part.hit_per_s(max(0.0, part.hot_blocks * part.block_bytes + more_bytes * of_it))
        return found / self._asked if self._asked else 0.0

    def _what_if(self, tier: Tier, asked_bytes: int, used_bytes: int) -> WhatIf:
        more_bytes = max(-used_bytes, asked_bytes)
        in_full = more_bytes * (self._block_bytes / self._stored_bytes if tier == "redis" else self._distinct)
        now = self._now
        then = Ratios(
            self._hit(max(0.0, self._room + in_full)), self._hot_hit(more_bytes) if tier == "hot" else now.hot
        )
        tokens = (then.hit - now.hit) * self._asked
        prefill = self._prefill()
        return WhatIf(
            tier=tier,
            more_bytes=more_bytes,
            bytes=used_bytes + more_bytes,
            ratios=then,
            points=100 * (then.hit - now.hit),
            hot_points=100 * (then.hot - now.hot),
            tokens_per_hour=tokens * _HOUR_S,
            prefill_s_per_hour=None if prefill is None else tokens * _HOUR_S / prefill,
        )

    def _prefill(self) -> float | None:
        known = [(p.prefill_tokens_per_s, p.asked_per_s) for p in self._parts if p.prefill_tokens_per_s > 0]
        return _mean(known) if known else None


def distinct_blocks(curves: Sequence[TenantCurve]) -> float:
    """How many the nodes have seen of late, each once.

    Bar-Yossef et al., "Counting distinct elements in a data stream", RANDOM 2002: below a threshold that all samples
    reach, the hashes are a uniform sample of the union. Within 10 to 20% of it, from 32 hashes of each node.
    """
    seen = sum(curve.seen_blocks for curve in curves)
    if len(curves) < 2 or not seen:
        return float(seen)
    reach = min(_reach(curve) for curve in curves)
    below = [{number for number in curve.lowest if number <= reach} for curve in curves]
    n_all = sum(map(len, below))
    return seen * len(set().union(*below)) / n_all if n_all else float(seen)


def _reach(curve: TenantCurve) -> float:
    """Up to which hash the curve's list is whole: its last one, or all that is sampled where that is fewer."""
    if curve.sampled_blocks > len(curve.lowest) and curve.lowest:
        return curve.lowest[-1]
    return _SKETCH_RANGE * curve.sampled_blocks / curve.seen_blocks if curve.seen_blocks else _SKETCH_RANGE


def _parts(nodes: Iterable[NodeView], tenant: str) -> list[_Part]:
    drawn: list[_Part] = []
    for node in nodes:
        stats = node.stats.tenants.get(tenant)
        if stats is not None and stats.curve is not None and node.stats.block_bytes > 0:
            rate = node.stats.rates.prefill_tokens_per_s
            drawn.append(_Part(stats.curve, node.stats.block_bytes, stats.hot_blocks, rate))
    distinct = distinct_blocks([part.curve for part in drawn])
    return [
        _Part(
            part.curve,
            part.block_bytes,
            part.hot_blocks,
            part.prefill_tokens_per_s,
            share=min(1.0, part.curve.seen_blocks / distinct) if distinct and part.curve.seen_blocks else 1.0,
        )
        for part in drawn
    ]


def _hot_limit(view: ClusterView, policy: TenantPolicy) -> int | None:
    """Of all nodes together: the lower of the total and of what each allows."""
    bounds = [] if policy.hot_total_limit_bytes is None else [policy.hot_total_limit_bytes]
    here = [_limit_here(node, policy) for node in view.alive]
    known = [limit for limit in here if limit is not None]
    if here and len(known) == len(here):
        bounds.append(sum(known))
    return min(bounds, default=None)


def _limit_here(node: NodeView, policy: TenantPolicy) -> int | None:
    stats = node.stats.tenants.get(policy.tenant)
    if stats is not None:
        return stats.hot_limit_bytes
    in_blocks = policy.hot_limit_blocks
    bounds = [policy.hot_limit_bytes, None if in_blocks is None else in_blocks * node.stats.block_bytes]
    return min((bound for bound in bounds if bound is not None), default=None)


def _mean(values: Sequence[tuple[float, float]]) -> float:
    """Of (value, weight); without weights, of the values."""
    weights = sum(weight for _, weight in values)
    if weights:
        return sum(value * weight for value, weight in values) / weights
    return sum(value for value, _ in values) / len(values)


def _thinned(sizes: Sequence[int]) -> Sequence[int]:
    """The last one, and others evenly among the rest."""
    if len(sizes) <= POINTS_MAX:
        return sizes
    return [sizes[index * (len(sizes) - 1) // (POINTS_MAX - 1)] for index in range(POINTS_MAX)]
