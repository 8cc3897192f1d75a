"""``/v1/prefixes``: which blocks of a prompt are where, and which prefixes are used most."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from coordinator.server.auth import CallerDep
from coordinator.server.errors import responses
from coordinator.server.prompt import QuestionDep, hashes_of, in_document, named, prompt_of
from coordinator.server.services import Services, ServicesDep
from coordinator.view.coverage import Coverage, cover
from coordinator.view.hottest import hottest
from coordinator.view.mirror import REDIS_BIT
from coordinator.view.snapshot import ClusterView
from tiered.hashing.scope import ModelScope
from tiered.types import BlockHash, NodeId

router = APIRouter(prefix="/v1/prefixes", tags=["prefixes"])


class RunBody(BaseModel):
    """Neighbouring blocks that are at the same places; at none where nodes is empty and redis is false."""

    first_block: int
    blocks: int
    nodes: list[str] = Field(description="That hold them hot; at most 32 are named.")
    n_nodes: int
    redis: bool


class TierCountsBody(BaseModel):
    """A block may be both hot and in Redis."""

    hot: int
    redis: int
    nowhere: int


class CoverageBody(BaseModel):
    """One scope of the model; scope fields are null where only hashes were given."""

    model: str | None
    weights_version: str | None
    tp_rank: int | None
    pp_rank: int | None
    block_tokens: int | None
    blocks: int
    covered_blocks: int = Field(description="From the first on without a gap, wherever they are.")
    tiers: TierCountsBody
    runs: list[RunBody]
    n_runs: int = Field(description="Of all; the first 1,024 are listed, fewer under a limit.")
    hashes: list[str]


class PrefixBody(BaseModel):
    scopes: list[CoverageBody]
    lag_s: float | None = Field(description="Age of what is known of blocks; null until it was read once.")


class HotPrefixBody(BaseModel):
    """The first blocks of some prompts, named by the hash of the last of them."""

    tenant: str
    hash: str
    blocks: int
    hits: int = Field(description="Matches that used all of them, over the nodes that say so, since each got them.")
    nodes: list[str]
    redis: bool = Field(default=False, description="Whether Redis holds the last of them.")
    within: str | None = Field(
        default=None, description="The longest other one in the answer that it begins with, by its hash."
    )


class HotPrefixesBody(BaseModel):
    prefixes: list[HotPrefixBody]


@router.get("")
def list_hottest(
    caller: CallerDep, services: ServicesDep, limit: Annotated[int, Query(ge=1, le=1_000)] = 20
) -> HotPrefixesBody:
    """The prefixes that saved most blocks of computing, by what each node says of its own: some every few seconds."""
    seen = [each for each in hottest(services.keeper.view.alive) if caller.may_see(each.tenant)][:limit]
    listed = {each.block_hash for each in seen}
    masks = services.mirror.masks([BlockHash(bytes.fromhex(each.block_hash)) for each in seen])
    return HotPrefixesBody(
        prefixes=[
            HotPrefixBody(
                tenant=each.tenant,
                hash=each.block_hash,
                blocks=each.n_blocks,
                hits=each.hits,
                nodes=list(each.nodes),
                redis=bool(mask & REDIS_BIT),
                within=each.within if each.within in listed else None,
            )
            for each, mask in zip(seen, masks, strict=True)
        ]
    )


@router.post("", response_model=PrefixBody, responses=responses(403, 422), openapi_extra=in_document())
def find(question: QuestionDep) -> Response:
    """Where the blocks of a prompt are. Hashes are taken as they are, whichever model they are of."""
    services, caller = question.services, question.caller
    prompt = prompt_of(question.body, caller)
    view, facts = services.keeper.view, services.mirror_facts()
    scopes: list[tuple[ModelScope | None, tuple[BlockHash, ...]]]
    if prompt.hashes is not None and prompt.model is None:
        scopes = [(None, hashes_of(prompt))]
    else:
        scopes = [(each.scope, each.hashes) for each in named(prompt, view, caller).blocks]
    answer = PrefixBody.model_construct(
        scopes=[_scope_body(scope, hashes, view, services, prompt.limit) for scope, hashes in scopes],
        lag_s=None if facts is None or facts.lag_s is None else round(facts.lag_s, 3),
    )
    return Response(answer.model_dump_json(), media_type="application/json")


def _scope_body(
    scope: ModelScope | None, hashes: tuple[BlockHash, ...], view: ClusterView, services: Services, limit: int
) -> CoverageBody:
    mirror = services.mirror
    bits = {mirror.bit(NodeId(node.info.node), node.epoch): node.info.node for node in view.alive}
    bits.pop(0, None)
    found = cover(mirror.masks(hashes), bits)
    return CoverageBody.model_construct(
        model=None if scope is None else scope.model,
        weights_version=None if scope is None else scope.weights_version,
        tp_rank=None if scope is None else scope.tp_rank,
        pp_rank=None if scope is None else scope.pp_rank,
        block_tokens=None if scope is None else scope.layout.block_tokens,
        blocks=len(hashes),
        covered_blocks=found.covered_blocks,
        tiers=TierCountsBody(hot=found.hot_blocks, redis=found.redis_blocks, nowhere=found.nowhere_blocks),
        runs=_runs(found, limit),
        n_runs=found.n_runs,
        hashes=[block_hash.hex() for block_hash in hashes],
    )


def _runs(found: Coverage, limit: int) -> list[RunBody]:
    return [
        RunBody(
            first_block=run.first_block,
            blocks=run.n_blocks,
            nodes=list(run.nodes),
            n_nodes=run.n_nodes,
            redis=run.in_redis,
        )
        for run in found.runs[:limit]
    ]
