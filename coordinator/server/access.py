"""``/v1/tenants/{tenant}/tokens``: bearer tokens with which a tenant sees its own numbers and nothing else.

A token is in the answer that made it, and nowhere afterwards. Every replica accepts it at once; one that is revoked
is refused everywhere within two seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from coordinator.server.auth import CHANGE, SeenTenant, TenantPath, require_known
from coordinator.server.errors import ApiError, responses
from coordinator.server.services import ServicesDep
from tiered.cluster.access import TOKENS_PER_TENANT_MAX, Grant
from tiered.types import TenantId

router = APIRouter(prefix="/v1/tenants/{tenant}/tokens", tags=["tokens"])

TokenId = Annotated[str, Path(alias="id", pattern="^[0-9a-f]{1,64}$", description="As the list of tokens has it.")]


class TokenRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    label: str = Field(
        default="", max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$", description="Whose it is, or what it is for."
    )
    expires_s: float | None = Field(
        default=None,
        strict=True,
        gt=0,
        le=10 * 366 * 86_400,
        description="Seconds until it ends by itself; null: it does not.",
    )


class AccessTokenBody(BaseModel):
    id: str
    label: str
    created_at: datetime
    expires_at: datetime | None


class NewTokenBody(AccessTokenBody):
    token: str = Field(description="Shown this once: what is kept is its SHA-256.")


class AccessTokensBody(BaseModel):
    tokens: list[AccessTokenBody]


@router.post("", status_code=201, responses=responses(404, 409), **CHANGE)
def create_token(name: TenantPath, body: TokenRequest, services: ServicesDep, response: Response) -> NewTokenBody:
    """Make a token for a tenant that has a policy or was seen."""
    require_known(name, services)
    made = services.credentials.tokens.create(TenantId(name), label=body.label, expires_s=body.expires_s)
    if made is None:
        message = f"tenant {name!r} has {TOKENS_PER_TENANT_MAX} tokens already; revoke one that nobody uses"
        raise ApiError(409, message, field="tenant")
    token, grant = made
    response.headers["Cache-Control"] = "no-store"
    return NewTokenBody(**_body(grant).model_dump(), token=token)


@router.get("", responses=responses(404))
def list_tokens(name: SeenTenant, services: ServicesDep) -> AccessTokensBody:
    """The tenant's tokens that are valid, oldest first; without the tokens themselves."""
    require_known(name, services)
    return AccessTokensBody(tokens=[_body(grant) for grant in services.credentials.tokens.list(name)])


@router.delete("/{id}", status_code=204, responses=responses(404), **CHANGE)
def revoke_token(name: TenantPath, token_id: TokenId, services: ServicesDep) -> None:
    """End a token now."""
    if not services.credentials.revoke(TenantId(name), token_id):
        raise ApiError(404, f"tenant {name!r} has no token {token_id!r}", field="id")


def _body(grant: Grant) -> AccessTokenBody:
    ends = grant.expires_ms
    return AccessTokenBody(
        id=grant.id,
        label=grant.label,
        created_at=_moment(grant.created_ms),
        expires_at=None if ends is None else _moment(ends),
    )


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, tz=UTC)
