"""What a tenant was promised: its bounds per tier. Stored in Redis, changed through the coordinator."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tiered.hashing.scope import tenant_label
from tiered.types import TenantId

DEFAULT_TENANT: Final = TenantId("default")
"""The policy of every tenant that is not named."""

_TENANT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SHARING: Final = re.compile(r"private|public|group:[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

RedisCodec = Literal["none", "lossless", "fp8", "int8"]
"""The names in tiered.codec.codecs."""

LOSSY_CODECS: Final = frozenset({"fp8", "int8"})

Bytes = Annotated[int, Field(ge=0, le=1 << 60)]
Blocks = Annotated[int, Field(ge=0, le=1 << 40)]


def check_tenant_name(name: str) -> str:
    """The name itself; ValueError says what a name may be. Names end up in keys, labels and paths."""
    if not _TENANT_NAME.fullmatch(name):
        raise ValueError("a tenant name is 1 to 64 of A-Z a-z 0-9 _ . - and starts with a letter or digit")
    return name


class TenantPolicy(BaseModel):
    """Bounds of one tenant; hot ones hold per node. None means "no limit of its own".

    A hot bound may be given in bytes, in blocks of the node's pool, or both: the lower limit and the higher promise
    count. redis_ttl_s: blocks in Redis go after so many seconds without a use. sharing: whose blocks it may read and
    who may read its own: ``private``, ``group:<name>`` with all tenants that name the same group, or ``public`` with
    all that are public. redis_codec: how its blocks are stored in Redis; a lossy codec only for blocks that nobody
    else reads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str
    hot_reserved_bytes: Bytes = 0
    hot_limit_bytes: Bytes | None = None
    hot_reserved_blocks: Blocks = 0
    hot_limit_blocks: Blocks | None = None
    redis_reserved_bytes: Bytes = 0
    redis_limit_bytes: Bytes | None = None
    redis_ttl_s: float | None = Field(default=None, gt=0, le=1e9)
    weight: float = Field(default=1.0, gt=0, le=1_000)
    over_quota: Literal["evict_own", "refuse"] = "evict_own"
    sharing: str = "private"
    redis_codec: RedisCodec = "none"

    @field_validator("tenant")
    @classmethod
    def _check_name(cls, value: str) -> str:
        return check_tenant_name(value)

    @field_validator("sharing")
    @classmethod
    def _check_sharing(cls, value: str) -> str:
        if not _SHARING.fullmatch(value):
            raise ValueError("sharing is private, public, or group: and the name of a group such as group:research")
        return value

    @model_validator(mode="after")
    def _check_reserved_within_limit(self) -> TenantPolicy:
        for bound in ("hot_{}_bytes", "hot_{}_blocks", "redis_{}_bytes"):
            reserved, limit = getattr(self, bound.format("reserved")), getattr(self, bound.format("limit"))
            if limit is not None and reserved > limit:
                raise PydanticCustomError(
                    "reserved_above_limit",
                    "{field} ({reserved}) is above {limit_field} ({limit})",
                    {
                        "field": bound.format("reserved"),
                        "limit_field": bound.format("limit"),
                        "reserved": reserved,
                        "limit": limit,
                    },
                )
        return self

    @model_validator(mode="after")
    def _check_lossy_is_private(self) -> TenantPolicy:
        if self.redis_codec in LOSSY_CODECS and self.sharing != "private":
            raise PydanticCustomError(
                "lossy_and_shared",
                "{field}: {codec} does not keep every bit, and with sharing {sharing} others read what is stored; "
                "choose lossless, or private sharing",
                {"field": "redis_codec", "codec": self.redis_codec, "sharing": self.sharing},
            )
        return self

    def of_unnamed(self, tenant: TenantId) -> TenantPolicy:
        """The policy of a tenant that has none of its own, from the default one.

        Each is bounded like the default, but nothing is reserved for it: a reservation is a promise to a name.
        """
        unpromised = {"hot_reserved_bytes": 0, "hot_reserved_blocks": 0, "redis_reserved_bytes": 0}
        return self.model_copy(update={"tenant": tenant, **unpromised})

    @property
    def label(self) -> str:
        """The sharing label of its scopes."""
        return tenant_label(TenantId(self.tenant)) if self.sharing == "private" else self.sharing
