"""What a tenant was promised: its bounds per tier. Stored in Redis, changed through the coordinator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
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

_RESERVED_WITHIN: Final = (
    ("hot_reserved_bytes", "hot_limit_bytes"),
    ("hot_reserved_blocks", "hot_limit_blocks"),
    ("hot_total_reserved_bytes", "hot_total_limit_bytes"),
    ("hot_reserved_bytes", "hot_total_limit_bytes"),  # what one node keeps is part of the total
    ("redis_reserved_bytes", "redis_limit_bytes"),
)
_UNPROMISED: Final = {
    "hot_reserved_bytes": 0,
    "hot_reserved_blocks": 0,
    "hot_total_reserved_bytes": 0,
    "redis_reserved_bytes": 0,
}

Bytes = Annotated[int, Field(ge=0, le=1 << 60)]
Blocks = Annotated[int, Field(ge=0, le=1 << 40)]


def _no_truth(value: object) -> object:
    """JSON's true equals 1 in Python, and says nothing of how many."""
    return "true or false" if isinstance(value, bool) else value


Copies = Annotated[Literal[1, 2], BeforeValidator(_no_truth)]


def check_tenant_name(name: str) -> str:
    """The name itself; ValueError says what a name may be. Names end up in keys, labels and paths."""
    if not _TENANT_NAME.fullmatch(name):
        raise ValueError("a tenant name is 1 to 64 of A-Z a-z 0-9 _ . - and starts with a letter or digit")
    return name


@dataclass(frozen=True, slots=True)
class Share:
    """What one node was lent of a tenant's totals. limit_bytes None: there is no total limit."""

    limit_bytes: int | None = None
    reserved_bytes: int = 0


def read_policies(
    stored: Mapping[TenantId, str | bytes],
) -> tuple[dict[TenantId, TenantPolicy], dict[TenantId, str]]:
    """From JSON; one that cannot be read, such as a later version's, is named with the reason instead."""
    policies: dict[TenantId, TenantPolicy] = {}
    unreadable: dict[TenantId, str] = {}
    for tenant, text in stored.items():
        try:
            policies[tenant] = TenantPolicy.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            unreadable[tenant] = f"{where}: {first['msg']}" if where else first["msg"]
    return policies, unreadable


class TenantPolicy(BaseModel):
    """Bounds of one tenant; hot ones hold per node. None means "no limit of its own".

    A hot bound may be given in bytes, in blocks of the node's pool, or both: the lower limit and the higher promise
    count. The ``hot_total`` bounds hold over all nodes together; each node is lent a share of them, and there the
    lower limit and the higher promise count. redis_ttl_s: blocks in Redis go after so many seconds without a use.
    sharing: whose blocks it may read and who may read its own: ``private``, ``group:<name>`` with all tenants that
    name the same group, or ``public`` with all that are public. redis_codec: how its blocks are stored in Redis; a
    lossy codec only for blocks that nobody else reads. copies: 2 keeps each block in two places that do not fail
    together: two nodes, or a node and Redis, or Redis and its replicas.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tenant: str
    hot_reserved_bytes: Bytes = 0
    hot_limit_bytes: Bytes | None = None
    hot_reserved_blocks: Blocks = 0
    hot_limit_blocks: Blocks | None = None
    hot_total_reserved_bytes: Bytes = 0
    hot_total_limit_bytes: Bytes | None = None
    redis_reserved_bytes: Bytes = 0
    redis_limit_bytes: Bytes | None = None
    redis_ttl_s: float | None = Field(default=None, gt=0, le=1e9)
    weight: float = Field(default=1.0, gt=0, le=1_000)
    over_quota: Literal["evict_own", "refuse"] = "evict_own"
    sharing: str = "private"
    redis_codec: RedisCodec = "none"
    copies: Copies = 1

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
        for reserved_field, limit_field in _RESERVED_WITHIN:
            reserved, limit = getattr(self, reserved_field), getattr(self, limit_field)
            if limit is not None and reserved > limit:
                raise PydanticCustomError(
                    "reserved_above_limit",
                    "{field} ({reserved}) is above {limit_field} ({limit})",
                    {"field": reserved_field, "limit_field": limit_field, "reserved": reserved, "limit": limit},
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
        return self.model_copy(update={"tenant": tenant, **_UNPROMISED})

    def stored(self) -> str:
        """As JSON, without what is as it is by default: a release that does not know a field reads on until somebody
        uses it. So no default may ever change."""
        return self.model_dump_json(exclude_defaults=True)

    @property
    def has_total(self) -> bool:
        """Whether a bound of it holds over all nodes together, so that nodes are lent shares."""
        return self.hot_total_limit_bytes is not None or self.hot_total_reserved_bytes > 0

    @property
    def label(self) -> str:
        """The sharing label of its scopes."""
        return tenant_label(TenantId(self.tenant)) if self.sharing == "private" else self.sharing
