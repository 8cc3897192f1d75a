"""What the coordinator says of memory and hit ratios, as records: shapes alone."""

from __future__ import annotations

from typing import Literal

import msgspec

Tier = Literal["hot", "redis"]


class Ratios(msgspec.Struct, frozen=True):
    hit_ratio: float
    hot_hit_ratio: float


class TierRoom(msgspec.Struct, frozen=True):
    used_bytes: int
    blocks: int
    limit_bytes: int | None


class Point(msgspec.Struct, frozen=True):
    bytes: int
    hit_ratio: float


class WhatIf(msgspec.Struct, frozen=True):
    tier: Tier
    more_bytes: int
    bytes: int
    hit_ratio: float
    hot_hit_ratio: float
    points: float
    hot_points: float
    tokens_per_hour: float
    prefill_s_per_hour: float | None


class TenantCapacity(msgspec.Struct, frozen=True):
    """nodes 0: nobody has seen the tenant look anything up of late, and there is no curve."""

    tenant: str
    nodes: int
    since_s: float | None = None
    sampled_blocks: int = 0
    seen_bytes: int = 0
    asked_tokens_per_hour: float | None = None
    prefill_tokens_per_s: float | None = None
    hot: TierRoom | None = None
    redis: TierRoom | None = None
    room_bytes: int | None = None
    measured: Ratios | None = None
    predicted: Ratios | None = None
    curve: list[Point] = []
    what_if: list[WhatIf] = []


class Capacity(msgspec.Struct, frozen=True):
    tenants: list[TenantCapacity]
    stale: bool
    age_s: float
    left_out: int = 0
