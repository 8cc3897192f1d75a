"""What an operator writes in ``kv_connector_extra_config``, read once and refused in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, field_validator

from tiered.addresses import default_worker_socket
from tiered.config import Seconds, SettingsGroup
from tiered.errors import ConfigError
from tiered.tenancy.policy import DEFAULT_TENANT, check_tenant_name

WHERE: Final = "kv_connector_extra_config"

_SALTS: Final = "salt_tenants"


class ConnectorSettings(SettingsGroup):
    socket: str = Field(default_factory=lambda: str(default_worker_socket()), min_length=1)
    """Of the worker on this node."""
    weights_version: str = Field(default="", max_length=256)
    """Names the very weights; empty: found out from the model's folder or its revision on the hub."""
    default_tenant: str = DEFAULT_TENANT
    """Of requests that name none."""
    salt_tenants: dict[str, str] = Field(default_factory=dict)
    """By cache salt, for front ends that tell tenants apart by it."""
    store: Literal["all", "prompt", "off"] = "all"
    """What is stored: prompts and answers, prompts alone, nothing."""
    store_interval_tokens: int = Field(default=256, ge=1, le=1 << 20)
    """An answer is stored in pieces of this many tokens, and its rest at its end."""
    lookup_timeout_s: Seconds = 0.25
    """How long a request waits to hear what is cached; then it is computed."""
    load_timeout_s: Seconds = 5.0
    """How long it waits for what is to be fetched. The worker gives up sooner where computing is quicker."""
    lookup_threads: int = Field(default=4, ge=1, le=32)
    """Requests that are looked up, and fetched for, at a time."""
    hold_s: Seconds = 2.0
    """How long the blocks of a request that has ended are kept until they are stored; then the rest is not stored."""
    attach_timeout_s: Seconds = 5.0
    """At the start; an engine whose worker answers later is attached then."""
    verify: bool = True
    """Check each block's checksum as it is loaded: about 0.1 ms a MiB."""

    @field_validator("default_tenant")
    @classmethod
    def _check_default(cls, value: str) -> str:
        return check_tenant_name(value)

    @field_validator("salt_tenants")
    @classmethod
    def _check_salts(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value.values():
            check_tenant_name(name)
        return value


def read_settings(given: Mapping[str, Any]) -> ConnectorSettings:
    """Errors: ConfigError naming the setting and the fix."""
    unknown = sorted(given.keys() - ConnectorSettings.model_fields.keys())
    if unknown:
        known = ", ".join(sorted(ConnectorSettings.model_fields))
        raise ConfigError(f"{WHERE}.{unknown[0]}: unknown setting; known here: {known}", field=unknown[0])
    try:
        return ConnectorSettings.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        if first["loc"][0] == _SALTS:  # who knows a salt may read what it keeps apart
            raise ConfigError(f"{WHERE}.{_SALTS}: {message}", field=_SALTS) from None
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{WHERE}.{name}: {first['input']!r} is not valid: {message}", field=name) from None
