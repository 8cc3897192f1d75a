"""What each further GiB of hot tier buys: hit ratios over a ladder of sizes, in all and for each tenant.

By LRU without bounds the whole curve is known exactly, in one pass (``curves.py``): for all tenants in one pool, and
for each tenant as if that much were its own, which is what reserving it would give. With any other policy, with
bounds, or with Redis below, each size is one replay, and a tenant's line is what it hits in the pool that all share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tiered.simulate.curves import Curve, lru_curve
from tiered.simulate.outcome import Outcome
from tiered.simulate.replay import Setup, replay
from tiered.simulate.tenants import Tenants
from tiered.simulate.trace import Request

GIB: Final = 1 << 30
LADDER_STEPS: Final = 11
"""Doublings from the smallest size to the one that holds all of the trace."""

KNEE_POINTS: Final = 0.1
"""A size that is so near to the best that any size gives is enough."""


@dataclass(frozen=True, slots=True)
class Step:
    """One size. gained: points more than the step before it. tokens_saved: over the whole trace."""

    blocks: int
    bytes: int
    hit_ratio: float
    gained: float
    points_per_gib: float
    tokens_saved: int


@dataclass(frozen=True, slots=True)
class Line:
    """One tenant's steps, or those of all together under the name ``all``.

    knee_blocks: from here on nothing is gained: within KNEE_POINTS of the best that any size (of those replayed,
    where it is not exact) gives.
    """

    tenant: str
    accesses: int
    steps: Sequence[Step]
    best_ratio: float
    knee_blocks: int
    knee_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """exact: the lines are whole curves, and a tenant's says what room of its own would give."""

    exact: bool
    block_bytes: int
    block_tokens: int
    lines: Sequence[Line]


def ladder(unique: int, *, block_bytes: int) -> list[int]:
    """Sizes in blocks: powers of two in bytes, the last one with room for all ``unique`` blocks."""
    top = max(block_bytes, 1 << math.ceil(math.log2(unique * block_bytes)))
    return sorted({(top >> step) // block_bytes for step in range(LADDER_STEPS) if top >> step >= block_bytes})


def plan_exactly(requests: Sequence[Request], tenants: Tenants, sizes: Sequence[int], *, block_bytes: int) -> Plan:
    """LRU, no bounds, nothing below."""
    by_tenant: dict[str, list[Request]] = {}
    for request in requests:
        by_tenant.setdefault(tenants.of(request), []).append(request)
    lines = [_line_of("all", lru_curve(requests), requests, sizes, block_bytes)]
    if len(by_tenant) > 1:
        lines += [
            _line_of(tenant, lru_curve(own), own, sizes, block_bytes) for tenant, own in sorted(by_tenant.items())
        ]
    return Plan(True, block_bytes, requests[0].block_tokens, lines)


def plan_by_replays(
    requests: Sequence[Request],
    setup: Setup,
    sizes: Sequence[int],
    *,
    block_bytes: int,
    on_request: Callable[[], None] | None = None,
) -> Plan:
    """One replay a size, with what else ``setup`` says."""
    outcomes = [replay(requests, replace(setup, hot_blocks=n_blocks), on_request=on_request) for n_blocks in sizes]
    tokens = requests[0].block_tokens
    names = sorted(outcomes[0].tenants)
    lines = [_line_from("all", _points(sizes, outcomes, None), tokens, block_bytes)]
    if len(names) > 1:
        lines += [_line_from(name, _points(sizes, outcomes, name), tokens, block_bytes) for name in names]
    return Plan(False, block_bytes, tokens, lines)


_Point = tuple[int, int, int]
"""Blocks, hits, accesses."""


def _points(sizes: Sequence[int], outcomes: Sequence[Outcome], tenant: str | None) -> list[_Point]:
    tallies = (
        outcome.total if tenant is None else {str(name): tally for name, tally in outcome.tenants.items()}[tenant]
        for outcome in outcomes
    )
    return [(n_blocks, tally.hits, tally.accesses) for n_blocks, tally in zip(sizes, tallies, strict=True)]


def _line_of(tenant: str, curve: Curve, requests: Iterable[Request], sizes: Sequence[int], block_bytes: int) -> Line:
    tokens = next(iter(requests)).block_tokens
    points = [(n_blocks, curve.hits_at(n_blocks), curve.accesses) for n_blocks in sizes]
    line = _line_from(tenant, points, tokens, block_bytes)
    best = curve.hits[-1]
    knee = curve.room_for(best - math.floor(KNEE_POINTS / 100 * curve.accesses))
    ratio = round(100 * best / max(1, curve.accesses), 2)
    return replace(line, best_ratio=ratio, knee_blocks=knee, knee_bytes=knee * block_bytes)


def _line_from(tenant: str, points: Sequence[_Point], block_tokens: int, block_bytes: int) -> Line:
    steps: list[Step] = []
    before_ratio, before_bytes = 0.0, 0
    for n_blocks, hits, accesses in points:
        ratio, n_bytes = 100 * hits / max(1, accesses), n_blocks * block_bytes
        gained = ratio - before_ratio
        gib = (n_bytes - before_bytes) / GIB
        steps.append(
            Step(
                blocks=n_blocks,
                bytes=n_bytes,
                hit_ratio=round(ratio, 2),
                gained=round(gained, 2),
                points_per_gib=round(gained / gib, 3),
                tokens_saved=hits * block_tokens,
            )
        )
        before_ratio, before_bytes = ratio, n_bytes
    best = max(step.hit_ratio for step in steps)
    knee = next(step.blocks for step in steps if step.hit_ratio >= best - KNEE_POINTS)
    return Line(tenant, points[0][2], steps, best, knee, knee * block_bytes)
