"""``/v1/usage`` and ``/v1/stats``: where the bytes are, and where the tokens were found."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from coordinator.server.auth import CallerDep, TenantName, ViewDep, unknown_tenant
from coordinator.server.errors import ApiError, responses
from coordinator.server.services import ServicesDep
from coordinator.view.follower import MirrorFacts
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
    limit_bytes: int | None = Field(default=None, description="In force there; null for none.")
    reserved_bytes: int = Field(default=0, description="In force there.")
    second_blocks: int = Field(default=0, description="Of those in Redis, for two copies: blocks that are hot too.")
    second_bytes: int = Field(default=0, description="What Redis holds of those.")


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
    capacity_bytes: int | None = Field(default=None, description="null while the tier is unbounded.")


class TiersBody(BaseModel):
    hot: HotTierBody
    redis: RedisTierBody


class NodeCountsBody(BaseModel):
    alive: int
    known: int


class MirrorBody(BaseModel):
    """What this replica keeps in memory of where blocks are."""

    blocks: int
    redis_blocks: int
    lag_s: float | None = Field(description="Since it knew all there was to know; null until it first did.")
    loads: int = Field(description="Partitions read whole once more, since changes were missed.")
    repairs: int = Field(description="Counts that differed, and were put right.")


class StatsBody(BaseModel):
    tokens: TokensBody
    by_tenant: dict[str, TokensBody]
    tiers: TiersBody
    nodes: NodeCountsBody
    saved_prefill_s: float = Field(
        default=0.0,
        description="Prefill that was spared, at the rates measured when it was; of the present lives of the nodes.",
    )
    stale: bool = Field(description="Redis could not be read the last time; the numbers are those before.")
    age_s: float = Field(description="Since these numbers were read.")
    mirror: MirrorBody | None = Field(default=None, description="null to a tenant's token.")
    is_leader: bool = Field(default=False, description="Whether this replica does the periodic work.")
    leader: str | None = Field(
        default=None, description="The replica that does it, as /v1/leader has it; null for nobody, and to a tenant."
    )
    leader_token: int = Field(default=0, description="Of its reign; grows for ever.")
    redis_conserved: bool | None = Field(
        default=None,
        description="Whether the last audit found the Redis tier's books true to the byte; null where this replica "
        "made none, where others wrote meanwhile, and to a tenant.",
    )


@router.get("/usage", responses=responses(404))
def list_usage(
    view: ViewDep,
    tenant: Annotated[TenantName | None, Query(description="Of this tenant alone.")] = None,
    node: Annotated[str | None, Query(max_length=255, description="On this node alone.")] = None,
) -> UsageBody:
    """One row for each tenant in each place that holds some of its bytes; they sum to the bytes of /v1/stats."""
    if tenant is not None and view.tenant(tenant) is None:
        raise unknown_tenant(tenant)
    if node is not None and all(each.info.node != node for each in view.nodes):
        raise ApiError(404, f"there is no node {node!r}; `tiered nodes` lists those that are", field="node")
    rows = [
        UsageRowBody(
            tenant=row.tenant,
            tier=row.tier,
            node=row.node,
            bytes=row.used_bytes,
            blocks=row.blocks,
            limit_bytes=row.limit_bytes,
            reserved_bytes=row.reserved_bytes,
            second_blocks=row.second_blocks,
            second_bytes=row.second_bytes,
        )
        for row in view.usage
        if tenant in (None, row.tenant) and node in (None, row.node)
    ]
    return UsageBody(usage=rows)


@router.get("/stats")
def get_stats(services: ServicesDep, view: ViewDep, caller: CallerDep) -> StatsBody:
    """The sums over the cluster; to a tenant's token, over that tenant."""
    standing = services.standing()
    leader = standing.leader if caller.sees_all and standing is not None else None
    findings = services.findings() if caller.sees_all else None
    return StatsBody(
        tokens=tokens_body(view.tokens),
        by_tenant={tenant.policy.tenant: tokens_body(tenant.tokens) for tenant in view.tenants},
        tiers=TiersBody(
            hot=HotTierBody(
                bytes=view.hot.used_bytes, blocks=view.hot.blocks, capacity_bytes=view.hot_capacity_bytes
            ),
            redis=RedisTierBody(
                bytes=view.redis.used_bytes,
                pending_bytes=view.redis.pending_bytes,
                blocks=view.redis.blocks,
                capacity_bytes=view.redis_capacity_bytes,
            ),
        ),
        nodes=NodeCountsBody(alive=len(view.alive), known=len(view.nodes)),
        saved_prefill_s=round(sum(of.saved_s for node in view.nodes for of in node.stats.tenants.values()), 3),
        stale=view.stale,
        age_s=round(services.keeper.age_s(), 3),
        mirror=_mirror_body(services.mirror_facts()) if caller.sees_all else None,
        is_leader=caller.sees_all and standing is not None and standing.is_leader,
        leader=None if leader is None else leader.replica,
        leader_token=0 if leader is None else leader.token,
        redis_conserved=None if findings is None else findings.conserved,
    )


def _mirror_body(facts: MirrorFacts | None) -> MirrorBody | None:
    if facts is None:
        return None
    return MirrorBody(
        blocks=facts.counts.blocks,
        redis_blocks=facts.counts.in_redis,
        lag_s=None if facts.lag_s is None else round(facts.lag_s, 3),
        loads=facts.loads,
        repairs=facts.repairs,
    )


def tokens_body(tokens: TokenCounts) -> TokensBody:
    return TokensBody(**msgspec.structs.asdict(tokens))
