"""``/v1/clear``: take a tenant's blocks, a prefix or a scope out of every pool and out of Redis."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from coordinator.server.auth import CHANGE, TenantName, require_known
from coordinator.server.errors import ApiError, responses
from coordinator.server.services import Services, ServicesDep
from tiered.cluster.clears import STANDING_MAX, ClearRequest
from tiered.types import HASH_BYTES

router = APIRouter(prefix="/v1/clear", tags=["blocks"])

Digest = Annotated[str, StringConstraints(pattern=f"^[0-9a-fA-F]{{{2 * HASH_BYTES}}}$")]


class ClearBody(BaseModel):
    """Exactly one of the three."""

    model_config = ConfigDict(extra="forbid")

    tenant: TenantName | None = Field(default=None, description="All its blocks; what others use too stays for them.")
    prefix: Digest | None = Field(default=None, description="Hash of a block: it goes, and all that hangs on it.")
    scope: Digest | None = Field(default=None, description="Id of a scope: all its blocks go.")

    @model_validator(mode="after")
    def _check_one(self) -> ClearBody:
        if sum(value is not None for value in (self.tenant, self.prefix, self.scope)) != 1:
            raise PydanticCustomError("one_of", "give exactly one of tenant, prefix and scope", {"field": "tenant"})
        return self

    def request(self) -> ClearRequest:
        if self.tenant is not None:
            return ClearRequest("tenant", self.tenant)
        if self.prefix is not None:
            return ClearRequest("prefix", self.prefix.lower())
        assert self.scope is not None
        return ClearRequest("scope", self.scope.lower())


class ClearedBody(BaseModel):
    redis_blocks: int = Field(description="That Redis let go of by now.")


@router.post("", status_code=202, responses=responses(404, 429), **CHANGE)
def clear(body: ClearBody, services: ServicesDep) -> ClearedBody:
    """Workers see it within half a second; what is in use there goes when it is no more. What is saved after a worker
    has seen it stays."""
    return ClearedBody(redis_blocks=clear_everywhere(body.request(), services))


def clear_everywhere(request: ClearRequest, services: Services) -> int:
    """How many blocks Redis let go of by now. Errors: ApiError 404 for a tenant that nobody knows, 429."""
    if request.what == "tenant":
        require_known(request.name, services)
    if services.clears.ask(request) is None:
        message = f"{STANDING_MAX} requests to clear stand already; each is done after some ten seconds, so ask again"
        raise ApiError(429, message)
    return services.clears.clear_redis(request)
