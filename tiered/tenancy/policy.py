"""What a tenant was promised: its bounds per tier. Stored in Redis, changed through the coordinator."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tiered.types import TenantId

DEFAULT_TENANT: Final = TenantId("default")
"""The policy of every tenant that is not named."""

_TENANT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

Bytes = Annotated[int, Field(ge=0, le=1 << 60)]


def check_tenant_name(name: str) -> str:
    """The name itself; ValueError says what a name may be. Names end up in keys, labels and paths."""
    if not _TENANT_NAME.fullmatch(name):
        raise ValueError("a tenant name is 1 to 64 of A-Z a-z 0-9 _ . - and starts with a letter or digit")
    return name


class TenantPolicy(BaseModel):
    """Bounds of one tenant. Units: bytes; hot bounds hold per node. None means "no limit of its own"."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str
    hot_reserved_bytes: Bytes = 0
    hot_limit_bytes: Bytes | None = None
    redis_reserved_bytes: Bytes = 0
    redis_limit_bytes: Bytes | None = None
    weight: float = Field(default=1.0, gt=0, le=1_000)
    over_quota: Literal["evict_own", "refuse"] = "evict_own"

    @field_validator("tenant")
    @classmethod
    def _check_name(cls, value: str) -> str:
        return check_tenant_name(value)

    @model_validator(mode="after")
    def _check_reserved_within_limit(self) -> TenantPolicy:
        for tier in ("hot", "redis"):
            reserved, limit = getattr(self, f"{tier}_reserved_bytes"), getattr(self, f"{tier}_limit_bytes")
            if limit is not None and reserved > limit:
                raise PydanticCustomError(
                    "reserved_above_limit",
                    "{field} ({reserved}) is above {tier}_limit_bytes ({limit})",
                    {
                        "field": f"{tier}_reserved_bytes",
                        "tier": tier,
                        "reserved": reserved,
                        "limit": limit,
                    },
                )
        return self
