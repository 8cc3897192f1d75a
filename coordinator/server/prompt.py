"""A prompt in a request's body, by its tokens or by the hashes of its blocks, and what it is called here.

Owns the form of that body. It may hold a million token ids and comes with every request of a router, so it is decoded
by msgspec, in the thread of the route: several times faster than through a model of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from fastapi import Depends, Request

from coordinator.server.auth import TENANT_PATTERN, CallerDep
from coordinator.server.caller import Caller
from coordinator.server.errors import ApiError
from coordinator.server.services import Services, services_of
from coordinator.view.naming import (
    NAMED_BLOCKS_MAX,
    NamedBlocks,
    UnknownModel,
    name_blocks,
    policy_of,
    scopes_of_model,
)
from coordinator.view.snapshot import ClusterView
from tiered.tenancy.policy import check_tenant_name
from tiered.types import HASH_BYTES, BlockHash, TenantId

TOKENS_MAX: Final = 1 << 20
LIMIT_MAX: Final = 1_000
MODEL_CHARS_MAX: Final = 512

Token = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
HexHash = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^[0-9a-fA-F]{{{2 * HASH_BYTES}}}$"})]


class Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either tokens or hashes. model: as its engines call it; may be left out where engines of one model alone are
    attached. limit: of what is listed in the answer."""

    tenant: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": TENANT_PATTERN})]
    tokens: Annotated[list[Token], msgspec.Meta(max_length=TOKENS_MAX)] | None = None
    hashes: Annotated[list[HexHash], msgspec.Meta(max_length=NAMED_BLOCKS_MAX)] | None = None
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=MODEL_CHARS_MAX)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = LIMIT_MAX


_DECODER: Final = msgspec.json.Decoder(Prompt)
_PLACE: Final = re.compile(r"(?P<what>.*) - at `\$\.?(?P<place>[^`]*)`")
_NAMED: Final = re.compile(r"Object (?:missing required|contains unknown) field `(?P<field>[^`]*)`")


@dataclass(frozen=True, slots=True)
class Question:
    """All that a route needs to answer about a prompt. body: as it came."""

    body: bytes
    caller: Caller
    services: Services


async def question_of(request: Request, caller: CallerDep) -> Question:
    """On the loop: what FastAPI would do in threads of its own costs more than the answer. The body was read before,
    by the limit on bodies."""
    return Question(await request.body(), caller, services_of(request))


QuestionDep = Annotated[Question, Depends(question_of)]


def in_document() -> dict[str, Any]:
    """What a route with such a body adds to the OpenAPI document."""
    schema = msgspec.json.schema(Prompt)["$defs"]["Prompt"]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def prompt_of(body: bytes, caller: Caller) -> Prompt:
    """Errors: ApiError 422 naming the field; 403 for what the caller may not ask.

    A tenant's token may give tokens alone. A hash is made from what anybody can know, tenant and prompt, so whoever
    could ask by hash could find out what others have asked.
    """
    try:
        prompt = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(422, f"the body is not valid JSON: {error}", field="body") from None
    try:
        check_tenant_name(prompt.tenant)
    except ValueError as error:
        raise ApiError(422, str(error), field="tenant") from None
    if (prompt.tokens is None) == (prompt.hashes is None):
        raise ApiError(422, "give either tokens or hashes", field="tokens")
    if not caller.may_see(prompt.tenant):
        raise ApiError(403, f"this token is tenant {caller.tenant}'s and sees nothing of others", field="tenant")
    if prompt.hashes is not None and not caller.sees_all:
        raise ApiError(403, "a tenant's token asks by tokens: a hash may be another tenant's", field="hashes")
    return prompt


@dataclass(frozen=True, slots=True)
class Named:
    """blocks: in every scope of the model. n_tokens: of the prompt, or as far as its hashes go."""

    blocks: tuple[NamedBlocks, ...]
    n_tokens: int


def named(prompt: Prompt, view: ClusterView, caller: Caller) -> Named:
    """Errors: ApiError 422 where it is not clear which model is meant."""
    policy = policy_of(view, TenantId(prompt.tenant))
    try:
        if prompt.tokens is not None:
            return Named(name_blocks(view, policy, prompt.tokens, prompt.model), len(prompt.tokens))
        hashes = hashes_of(prompt)
        scopes = scopes_of_model(view, prompt.model)
    except UnknownModel as error:
        message = error.with_models if caller.sees_all else str(error)
        raise ApiError(422, message, field="model") from None
    block_tokens = max(scope.layout.block_tokens for scope in scopes)
    return Named(tuple(NamedBlocks(scope, hashes) for scope in scopes), len(hashes) * block_tokens)


def hashes_of(prompt: Prompt) -> tuple[BlockHash, ...]:
    """Errors: ApiError 422 naming the first that is none."""
    hashes = []
    for index, text in enumerate(prompt.hashes or ()):
        try:
            block_hash = bytes.fromhex(text)
        except ValueError:
            block_hash = b""
        if len(block_hash) != HASH_BYTES or len(text) != 2 * HASH_BYTES:
            message = f"a block hash is {2 * HASH_BYTES} hexadecimal digits, not {text[:80]!r}"
            raise ApiError(422, message, field=f"hashes.{index}")
        hashes.append(BlockHash(block_hash))
    return tuple(hashes)


def _invalid(message: str) -> ApiError:
    """msgspec says where it stumbled in its message alone."""
    where = _PLACE.fullmatch(message)
    if where is None:
        which = _NAMED.match(message)
        return ApiError(422, message, field=which["field"] if which else "body")
    place = where["place"].replace("[", ".").replace("]", "")
    which = _NAMED.match(where["what"])
    return ApiError(422, where["what"], field=place or (which["field"] if which else "body"))
