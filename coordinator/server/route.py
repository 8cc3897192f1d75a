"""``/v1/route``: which node should have this prompt. For routers, on every request: answered from memory."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from coordinator.server.errors import responses
from coordinator.server.prompt import QuestionDep, in_document, named, prompt_of
from coordinator.view.route import NodeRoute, rank

router = APIRouter(prefix="/v1/route", tags=["route"])


class NodeRouteBody(BaseModel):
    """hot, peer and redis blocks are those that would be used; what is not worth fetching is computed."""

    node: str
    peer: str = Field(description="host of the node, as its peers reach it.")
    hot_blocks: int
    peer_blocks: int
    redis_blocks: int
    computed_tokens: int = Field(description="The partial last block is always among them.")
    expected_ttft_s: float | None = Field(description="null while no engine has said how fast it computes.")
    uncached_ttft_s: float | None = Field(description="If this node computed all of it.")
    waiting_s: float = Field(description="How long the fetches that wait there now will take.")
    assumed: list[str] = Field(description="Rates this node has not measured: the others' median was taken.")


class NotEligibleBody(BaseModel):
    node: str
    reason: str


class RouteBody(BaseModel):
    model: str
    block_tokens: int
    blocks: int = Field(description="Full blocks of the prompt.")
    nodes: list[NodeRouteBody] = Field(description="Best first.")
    not_eligible: list[NotEligibleBody]
    unmeasured: list[str] = Field(description="prefill, peers, redis: rates that no node has measured yet.")
    lag_s: float | None = Field(description="Age of what is known of blocks; null until it was read once.")
    age_s: float = Field(description="Age of what is known of nodes.")


@router.post("", response_model=RouteBody, responses=responses(403, 422), openapi_extra=in_document())
def route(question: QuestionDep) -> Response:
    """Nodes for a prompt, by expected time to first token."""
    services = question.services
    prompt = prompt_of(question.body, question.caller)
    view = services.keeper.view
    what = named(prompt, view, question.caller)
    ranking = rank(view.nodes, services.mirror, what.blocks, n_tokens=what.n_tokens, limit=prompt.limit)
    scope, facts = what.blocks[0].scope, services.mirror_facts()
    answer = RouteBody.model_construct(
        model=scope.model,
        block_tokens=scope.layout.block_tokens,
        blocks=len(what.blocks[0].hashes),
        nodes=[_node(each) for each in ranking.ranked],
        not_eligible=[
            NotEligibleBody.model_construct(node=each.node.info.node, reason=each.reason)
            for each in ranking.refused[: prompt.limit]
        ],
        unmeasured=list(ranking.unmeasured),
        lag_s=None if facts is None or facts.lag_s is None else round(facts.lag_s, 3),
        age_s=round(services.keeper.age_s(), 3),
    )
    return Response(answer.model_dump_json(), media_type="application/json")


def _node(route: NodeRoute) -> NodeRouteBody:
    return NodeRouteBody.model_construct(
        node=route.node.info.node,
        peer=route.node.info.peer_host,
        hot_blocks=route.hot_blocks,
        peer_blocks=route.peer_blocks,
        redis_blocks=route.redis_blocks,
        computed_tokens=route.computed_tokens,
        expected_ttft_s=_seconds(route.expected_ttft_s),
        uncached_ttft_s=_seconds(route.uncached_s),
        waiting_s=round(route.waiting_s, 6),
        assumed=list(route.assumed),
    )


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
