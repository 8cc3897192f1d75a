"""``/v1/tenants/{tenant}/pins``: prefixes that are to stay in Redis for a while, such as a system prompt.

A pin is a lease: it ends by itself. It holds against pressure inside the tenant's limit; it does not raise the limit,
and a tenant whose blocks are all pinned is refused new ones.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from coordinator.server.auth import CHANGE, TenantPath, require_known
from coordinator.server.errors import responses
from coordinator.server.services import ServicesDep
from tiered.types import HASH_BYTES, BlockHash, TenantId

router = APIRouter(prefix="/v1/tenants/{tenant}/pins", tags=["tenants"])

HexHash = Annotated[str, StringConstraints(pattern=f"^[0-9a-fA-F]{{{2 * HASH_BYTES}}}$")]


class PrefixBody(BaseModel):
    """The blocks of one prefix, from its first on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    hashes: list[HexHash] = Field(min_length=1, max_length=65_536, description="Block hashes in hex, in chain order.")


class PinBody(PrefixBody):
    lease_s: float = Field(gt=0, le=30 * 86_400, description="Seconds until the pin ends by itself.")


class PinnedBody(BaseModel):
    blocks: int = Field(description="How many of them Redis holds: those are pinned, or were until now.")


@router.put("", responses=responses(401, 404, 422, 503), **CHANGE)
def pin(name: TenantPath, body: PinBody, services: ServicesDep) -> PinnedBody:
    """Keep a prefix from being evicted for so long; again with a longer lease lengthens it."""
    require_known(name, services)
    return PinnedBody(blocks=services.ledger.pin(_hashes(body), TenantId(name), lease_s=body.lease_s))


@router.post("/release", responses=responses(401, 404, 422, 503), **CHANGE)
def unpin(name: TenantPath, body: PrefixBody, services: ServicesDep) -> PinnedBody:
    """End a pin now; the prefix is then as young as if it had just been used."""
    require_known(name, services)
    return PinnedBody(blocks=services.ledger.unpin(_hashes(body), TenantId(name)))


def _hashes(body: PrefixBody) -> list[BlockHash]:
    return [BlockHash(bytes.fromhex(text)) for text in body.hashes]
