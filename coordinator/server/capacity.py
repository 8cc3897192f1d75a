"""``/v1/capacity``: for each tenant its hit ratio over bytes, and what more or less memory would buy."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query
from pydantic import AfterValidator, BaseModel, Field

from coordinator.server.auth import CallerDep, TenantName, ViewDep, unknown_tenant
from coordinator.server.errors import ApiError, responses
from coordinator.server.services import ServicesDep
from coordinator.view.capacity import Capacity, Ratios, Tier, TierRoom, WhatIf, capacities, capacity_of
from tiered.config import parse_bytes

router = APIRouter(prefix="/v1/capacity", tags=["usage"])

LIMIT_MAX: Final = 1_000
MORE_BYTES_MAX: Final = 1 << 50


def _check_size(text: str) -> str:
    """Errors: ValueError for what is no size, none at all, or beyond any machine."""
    n_bytes = parse_bytes(text)
    if not isinstance(n_bytes, int) or not 0 < abs(n_bytes) <= MORE_BYTES_MAX:
        raise ValueError("write how much more, or less, such as 10GiB or -512MiB; up to 1024TiB")
    return text


MoreBytes = Annotated[str, Field(max_length=32), AfterValidator(_check_size)]


class RatiosBody(BaseModel):
    """Parts of the tokens asked for, from 0 to 1."""

    hit_ratio: float = Field(description="Found in any tier.")
    hot_hit_ratio: float = Field(description="Found in the pool of the node that was asked.")


class TierRoomBody(BaseModel):
    used_bytes: int
    blocks: int
    limit_bytes: int | None = Field(description="The tenant's own, over all nodes; null for none.")


class PointBody(BaseModel):
    bytes: int = Field(description="Full-size bytes of distinct blocks, in all tiers together.")
    hit_ratio: float


class WhatIfBody(RatiosBody):
    """What the lookups of late would have found with a tier larger or smaller."""

    tier: Literal["hot", "redis"]
    more_bytes: int = Field(description="As the tier counts them; no less than what it holds can go.")
    bytes: int = Field(description="What the tier would hold of the tenant.")
    points: float = Field(description="Percentage points of the hit ratio gained.")
    hot_points: float = Field(description="And of the hot hit ratio.")
    tokens_per_hour: float = Field(description="More of the tokens asked for would be found.")
    prefill_s_per_hour: float | None = Field(description="Less to compute; null while no engine has said its rate.")


class TenantCapacityBody(BaseModel):
    """Where no node has seen the tenant look anything up of late, nodes is 0 and all that needs a curve is null."""

    tenant: str
    nodes: int = Field(description="Alive, with a curve of this tenant.")
    since_s: float | None = Field(default=None, description="How long ago the oldest of them began to draw it.")
    sampled_blocks: int = 0
    seen_bytes: int = Field(default=0, description="Full-size bytes of the distinct blocks of the last hours.")
    asked_tokens_per_hour: float | None = None
    prefill_tokens_per_s: float | None = None
    hot: TierRoomBody | None = None
    redis: TierRoomBody | None = None
    room_bytes: int | None = Field(default=None, description="Full-size bytes of its distinct blocks in all tiers.")
    measured: RatiosBody | None = Field(default=None, description="Of the lookups that the curve is drawn from.")
    predicted: RatiosBody | None = Field(default=None, description="What the curve says for the room there is.")
    curve: list[PointBody] = []
    what_if: list[WhatIfBody] = []


class CapacityBody(BaseModel):
    tenants: list[TenantCapacityBody] = Field(description="Those with most lookups first.")
    left_out: int = Field(description="Tenants with a curve beyond the limit.")
    stale: bool = Field(description="Redis could not be read the last time; the numbers are those before.")
    age_s: float = Field(description="Since these numbers were read.")


@router.get("", responses=responses(404, 422))
def get_capacity(
    services: ServicesDep,
    view: ViewDep,
    caller: CallerDep,
    tenant: Annotated[TenantName | None, Query(description="This one alone.")] = None,
    more_bytes: Annotated[
        MoreBytes | None, Query(description="A change to look at besides the usual ones, such as 10GiB or -512MiB.")
    ] = None,
    tier: Annotated[Tier | None, Query(description="Of which tier; without more_bytes it means nothing.")] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="How many tenants; each takes milliseconds.")] = 100,
) -> CapacityBody:
    """What more memory would buy: hit ratio by bytes, from a sample of the lookups of the last hours.

    One LRU over everything is what is modelled; predicted beside measured says how far that is from the truth.
    """
    if tenant is not None and not caller.may_see(tenant):
        raise unknown_tenant(tenant)
    if tier is not None and more_bytes is None:
        raise ApiError(422, "tier goes with more_bytes, such as ?tier=redis&more_bytes=10GiB", field="more_bytes")
    more = [] if more_bytes is None else [(tier or "redis", _bytes_of(more_bytes))]
    if tenant is None:
        chosen = capacities(view)
    else:
        known = view.tenant(tenant)
        if known is None:
            raise unknown_tenant(tenant)
        chosen = [known]
    bodies = [
        TenantCapacityBody(tenant=each.policy.tenant, nodes=0)
        if (found := capacity_of(view, each, more=more)) is None
        else _body(found)
        for each in chosen[:limit]
    ]
    left_out = max(0, len(chosen) - limit)
    return CapacityBody(tenants=bodies, left_out=left_out, stale=view.stale, age_s=round(services.keeper.age_s(), 3))


def _bytes_of(text: str) -> int:
    n_bytes = parse_bytes(text)
    assert isinstance(n_bytes, int)  # _check_size saw to that
    return n_bytes


def _body(found: Capacity) -> TenantCapacityBody:
    return TenantCapacityBody(
        tenant=found.tenant,
        nodes=found.n_nodes,
        since_s=round(found.since_s, 1),
        sampled_blocks=found.sampled_blocks,
        seen_bytes=found.seen_bytes,
        asked_tokens_per_hour=round(found.asked_per_hour, 1),
        prefill_tokens_per_s=found.prefill_tokens_per_s,
        hot=_room_body(found.hot),
        redis=_room_body(found.redis),
        room_bytes=found.room_bytes,
        measured=None if found.measured is None else RatiosBody(**_ratios(found.measured)),
        predicted=RatiosBody(**_ratios(found.predicted)),
        curve=[PointBody(bytes=size, hit_ratio=round(ratio, 4)) for size, ratio in found.curve],
        what_if=[_what_if_body(each) for each in found.what_if],
    )


def _room_body(room: TierRoom) -> TierRoomBody:
    return TierRoomBody(used_bytes=room.used_bytes, blocks=room.blocks, limit_bytes=room.limit_bytes)


def _ratios(ratios: Ratios) -> dict[str, float]:
    return {"hit_ratio": round(ratios.hit, 4), "hot_hit_ratio": round(ratios.hot, 4)}


def _what_if_body(what_if: WhatIf) -> WhatIfBody:
    prefill = what_if.prefill_s_per_hour
    return WhatIfBody(
        tier=what_if.tier,
        more_bytes=what_if.more_bytes,
        bytes=what_if.bytes,
        points=round(what_if.points, 2),
        hot_points=round(what_if.hot_points, 2),
        tokens_per_hour=round(what_if.tokens_per_hour, 1),
        prefill_s_per_hour=None if prefill is None else round(prefill, 1),
        **_ratios(what_if.ratios),
    )
