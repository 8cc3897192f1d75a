"""What an operator writes for our tier in ``secondary_tiers``, read once and refused in one sentence.

Owns the names of those settings and their bounds; the ones that concern Redis are
:class:`~tiered.config.RedisSettings`' under the same names, but for ``redis_url``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, field_validator

from tiered.config import RedisSettings, Seconds, SettingsGroup, mask_secrets
from tiered.errors import ConfigError
from tiered.tenancy.policy import check_tenant_name

WHERE: Final = "secondary_tiers"
"""The key of vLLM's ``kv_connector_extra_config`` under which all of this stands."""

_URL: Final = "redis_url"


class TierSettings(SettingsGroup):
    """What is not about Redis itself."""

    weights_version: str = Field(min_length=1, max_length=256)
    """Names the very weights, such as the commit of the model's repository: engines share what they name alike."""
    model: str = Field(default="", max_length=512)
    """As others call the model; empty: what vLLM calls it, which is a path where it was started with one."""
    tenant: str = "default"
    """Of requests that name none in ``kv_transfer_params.tenant``."""
    locality: Literal["LOCAL", "REMOTE"] = "REMOTE"
    """What vLLM is told of where Redis is; its per-request filter ``kv_load_tiers`` goes by it."""
    lookup_wait_s: Seconds = 0.1
    """How long a request is held up by lookups that have no answer yet; then it goes on without."""
    load_timeout_s: Seconds = 5.0
    """Of one load in all. What has not come by then is computed."""
    store_timeout_s: Seconds = 10.0
    """Of one store in all. What has not gone by then is not stored."""
    load_threads: int = Field(default=2, ge=1, le=6)
    store_threads: int = Field(default=1, ge=1, le=2)
    queue_chunks_max: int = Field(default=0, ge=0, le=1 << 24)
    """Chunks that wait to be stored, and as many to be loaded; vLLM cannot evict them from its memory meanwhile.
    0: a quarter of what that memory holds."""

    @field_validator("tenant")
    @classmethod
    def _check_tenant(cls, value: str) -> str:
        return check_tenant_name(value)


@dataclass(frozen=True, slots=True)
class SecondarySettings:
    redis: RedisSettings
    tier: TierSettings


_REDIS: Final = {_URL if name == "url" else name: name for name in RedisSettings.model_fields}


def read_settings(given: Mapping[str, Any]) -> SecondarySettings:
    """Errors: ConfigError naming the setting and the fix."""
    unknown = sorted(given.keys() - _REDIS.keys() - TierSettings.model_fields.keys())
    if unknown:
        known = ", ".join(sorted(_REDIS.keys() | TierSettings.model_fields.keys()))
        raise ConfigError(f"{WHERE}.{unknown[0]}: unknown setting; known here: {known}", field=unknown[0])
    if _URL not in given:
        raise ConfigError(f"{WHERE}.{_URL}: missing; write where Redis is, such as redis://host:6379", field=_URL)
    if "weights_version" not in given:
        raise ConfigError(
            f"{WHERE}.weights_version: missing; write what names the very weights, such as the commit of the model's "
            "repository",
            field="weights_version",
        )
    try:
        return SecondarySettings(
            RedisSettings.model_validate({_REDIS[name]: value for name, value in given.items() if name in _REDIS}),
            TierSettings.model_validate({name: value for name, value in given.items() if name not in _REDIS}),
        )
    except ValidationError as error:
        raise _refusal(error) from None


def in_our_words(error: ConfigError) -> ConfigError:
    """One about the group ``redis``, by the name its setting has here."""
    name = {f"redis.{theirs}": ours for ours, theirs in _REDIS.items()}.get(error.field, error.field)
    sentence = str(error).replace("redis.url", _URL).replace("redis.", "")
    return ConfigError(f"{WHERE}.{sentence}", field=name)


def _refusal(error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    name = _URL if name == "url" else name
    message = first["msg"].removeprefix("Value error, ")
    shown = mask_secrets(name, first["input"])
    return ConfigError(f"{WHERE}.{name}: {shown!r} is not valid: {message}", field=name)
