"""``/v1/blocks/{hash}``: where one block is, and what happened to it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field, StringConstraints

from coordinator.server.auth import CallerDep
from coordinator.server.caller import Caller
from coordinator.server.errors import ApiError, responses
from coordinator.server.happenings import (
    EventBody,
    ExplainerDep,
    SilentBody,
    event_bodies,
    silent_bodies,
)
from coordinator.server.services import Services, ServicesDep
from coordinator.view.explainer import HIDDEN, Explainer, Explanation, OnNode
from tiered.cluster.why import TOLD_MAX, InRedis
from tiered.types import HASH_BYTES, BlockHash

router = APIRouter(prefix="/v1/blocks", tags=["blocks"])

BOUNDED = (
    f"Every node remembers its newest events only (why.events_max), and Redis the newest {TOLD_MAX:,} of each "
    "partition: what happened before is not told. Between machines the order is as good as their clocks."
)

Hash = Annotated[
    str,
    StringConstraints(pattern=f"^[0-9a-fA-F]{{{2 * HASH_BYTES}}}$"),
    Path(alias="hash", description=f"The block's hash: {2 * HASH_BYTES} hexadecimal digits."),
]


class OnNodeBody(BaseModel):
    node: str
    epoch: int
    state: str = Field(
        description="ready, leaving or filling; absent where the directory says that this node has it and the node "
        "does not; unknown where the node gave no answer."
    )
    announced: bool = Field(description="Whether the directory says that it has it.")
    tenants: list[str]
    hits: int
    pins: int
    depth: int = Field(description="Blocks before it in its prefix.")
    idle_uses: int | None = Field(
        description="Uses of this node's blocks since its last; null for a tenant, since others' are among them."
    )


class InRedisBody(BaseModel):
    bytes: int
    tenants: list[str] = Field(description="Who is charged for it, in equal parts.")
    depth: int
    idle_s: float
    pinned_for_s: float = Field(description="Until it may be evicted; 0 where it is not pinned.")


class EndedBody(BaseModel):
    """An owner in the directory that does not count."""

    node: str
    epoch: int
    reason: str


class BlockBody(BaseModel):
    hash: str
    nodes: list[OnNodeBody]
    redis: InRedisBody | None
    ended_owners: list[EndedBody]
    silent: list[SilentBody] = Field(description="Who could have known more and gave no answer.")


class WhyBody(BlockBody):
    history: list[EventBody] = Field(description="Oldest first.")
    forgotten: int | None = Field(description="Events of any block that nodes remember no more; null for a tenant.")
    note: str = Field(default=BOUNDED, description="What a history cannot tell.")


@router.get("/{hash}", responses=responses(404, 422))
def get_block(block: Hash, caller: CallerDep, services: ServicesDep, explainer: ExplainerDep) -> BlockBody:
    """Where the block is now, by what the nodes and Redis themselves say. Tenants see their own blocks alone."""
    found = _explained(block, caller, services, explainer)
    if not found.is_anywhere:
        raise _unknown(block, found, has_history=bool(found.history))
    return _block_body(block, found)


@router.get("/{hash}/why", responses=responses(404, 422))
def get_history(block: Hash, caller: CallerDep, services: ServicesDep, explainer: ExplainerDep) -> WhyBody:
    """What happened to the block, from all that remember it, and where it is now."""
    found = _explained(block, caller, services, explainer)
    if not found.is_anywhere and not found.history:
        raise _unknown(block, found, has_history=False)
    return WhyBody(
        **dict(_block_body(block, found)), history=event_bodies(found.history), forgotten=_shown(found.forgotten)
    )


def _explained(block: str, caller: Caller, services: Services, explainer: Explainer) -> Explanation:
    return explainer.explain(services.keeper.view, BlockHash(bytes.fromhex(block)), tenant=caller.tenant)


def _unknown(block: str, found: Explanation, *, has_history: bool) -> ApiError:
    silent = ", ".join(each.who for each in found.silent)
    but = f"; no answer came from {silent}" if silent else ""
    more = f"; what happened to it is at {router.prefix}/{block}/why" if has_history else ""
    return ApiError(404, f"nobody has block {block} now{but}{more}", field="hash")


def _block_body(block: str, found: Explanation) -> BlockBody:
    return BlockBody(
        hash=block.lower(),
        nodes=[_on_node_body(each, found) for each in found.nodes],
        redis=None if found.in_redis is None else _in_redis_body(found.in_redis),
        ended_owners=[
            EndedBody(node=each.owner.node, epoch=each.owner.epoch, reason=each.reason) for each in found.ended
        ],
        silent=silent_bodies(found.silent),
    )


def _on_node_body(each: OnNode, found: Explanation) -> OnNodeBody:
    name, here = each.node.info.node, each.here
    if here is None:
        state = "unknown" if any(silent.who == name for silent in found.silent) else "absent"
        return OnNodeBody(
            node=name,
            epoch=each.node.epoch,
            state=state,
            announced=each.announced,
            tenants=[],
            hits=0,
            pins=0,
            depth=0,
            idle_uses=0,
        )
    return OnNodeBody(
        node=name,
        epoch=each.node.epoch,
        state=here.state,
        announced=each.announced,
        tenants=list(here.tenants),
        hits=here.hits,
        pins=here.pins,
        depth=here.depth,
        idle_uses=_shown(here.idle),
    )


def _shown(n: int) -> int | None:
    return None if n == HIDDEN else n


def _in_redis_body(found: InRedis) -> InRedisBody:
    return InRedisBody(
        bytes=found.n_bytes,
        tenants=list(found.tenants),
        depth=found.depth,
        idle_s=round(found.idle_s, 3),
        pinned_for_s=round(found.pinned_for_s, 3),
    )
