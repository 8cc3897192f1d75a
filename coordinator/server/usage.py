"""``/v1/usage`` and ``/v1/stats``: where the bytes are, and where the tokens were found."""

from __future__ import annotations

from typing import Literal

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field

from coordinator.server.services import ServicesDep
from tiered.types import TokenCounts

router = APIRouter(prefix="/v1", tags=["usage"])


class TokensBody(BaseModel):
    """asked = hot + peer + redis + missed; grows for the life of the cluster."""

    asked: int
    hot: int
    peer: int
    redis: int
    missed: int


class UsageRowBody(BaseModel):
    tenant: str
    tier: Literal["hot", "redis"]
    node: str | None = Field(description="null for the shared tier")
    bytes: int
    blocks: int


class UsageBody(BaseModel):
    usage: list[UsageRowBody]


class HotTierBody(BaseModel):
    bytes: int
    blocks: int
    capacity_bytes: int


class RedisTierBody(BaseModel):
    bytes: int
    pending_bytes: int
    blocks: int


class TiersBody(BaseModel):
    hot: HotTierBody
    redis: RedisTierBody


class NodeCountsBody(BaseModel):
    alive: int
    known: int


class StatsBody(BaseModel):
    tokens: TokensBody
    by_tenant: dict[str, TokensBody]
    tiers: TiersBody
    nodes: NodeCountsBody
    stale: bool = Field(description="Redis could not be read the last time; the numbers are those before.")
    age_s: float = Field(description="Since these numbers were read.")


@router.get("/usage")
def list_usage(services: ServicesDep) -> UsageBody:
    """One row for each tenant in each place that holds some of its bytes."""
    rows = [
        UsageRowBody(
            tenant=row.tenant,
            tier=row.tier,
            node=row.node,
            bytes=row.used_bytes,
            blocks=row.blocks,
        )
        for row in services.keeper.view.usage
    ]
    return UsageBody(usage=rows)


@router.get("/stats")
def get_stats(services: ServicesDep) -> StatsBody:
    """The sums over the cluster."""
    view = services.keeper.view
    return StatsBody(
        tokens=tokens_body(view.tokens),
        by_tenant={tenant.policy.tenant: tokens_body(tenant.tokens) for tenant in view.tenants},
        tiers=TiersBody(
            hot=HotTierBody(
                bytes=view.hot.used_bytes, blocks=view.hot.blocks, capacity_bytes=view.hot_capacity_bytes
            ),
            redis=RedisTierBody(
                bytes=view.redis.used_bytes, pending_bytes=view.redis.pending_bytes, blocks=view.redis.blocks
            ),
        ),
        nodes=NodeCountsBody(alive=len(view.alive), known=len(view.nodes)),
        stale=view.stale,
        age_s=round(services.keeper.age_s(), 3),
    )


def tokens_body(tokens: TokenCounts) -> TokensBody:
    return TokensBody(**msgspec.structs.asdict(tokens))
