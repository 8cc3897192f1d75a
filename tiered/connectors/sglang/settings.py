"""What an operator writes in ``--hicache-storage-backend-extra-config``, read once and refused in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field, ValidationError, field_validator

from tiered.addresses import default_worker_socket
from tiered.config import SettingsGroup
from tiered.errors import ConfigError
from tiered.tenancy.policy import DEFAULT_TENANT, check_tenant_name

WHERE: Final = "hicache-storage-backend-extra-config"

SGLANG_KEYS: Final = frozenset(
    {
        "backend_name",
        "module_path",
        "class_name",
        "interface_v1",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "hicache_storage_pass_prefix_keys",
        "tp_lcm_size",
    }
)
"""Read by SGLang itself, from the same object."""


class BackendSettings(SettingsGroup):
    socket: str = Field(default_factory=lambda: str(default_worker_socket()), min_length=1)
    """Of the worker on this node."""
    tenant: str = DEFAULT_TENANT
    """Of all requests: SGLang names pages by hashes that do not say whose they are."""
    model: str = Field(default="", max_length=512)
    """As other engines call the model; empty: as SGLang was told."""
    weights_version: str = Field(default="", max_length=256)
    """Names the very weights; empty: found out from the model's folder."""
    kv_cache_dtype: str = Field(default="", max_length=64)
    """As ``--kv-cache-dtype`` says it; needed where the host pool holds plain bytes."""
    load_timeout_s: float = Field(default=4.0, gt=0, le=6.0)
    """Of one batch of pages, all in all. SGLang waits 10 s for its threads when it detaches a backend."""

    @field_validator("tenant")
    @classmethod
    def _check_tenant(cls, value: str) -> str:
        return check_tenant_name(value)


def read_settings(given: Mapping[str, Any]) -> BackendSettings:
    """Errors: ConfigError naming the setting and the fix."""
    ours = {name: value for name, value in given.items() if name not in SGLANG_KEYS}
    unknown = sorted(ours.keys() - BackendSettings.model_fields.keys())
    if unknown:
        known = ", ".join(sorted(BackendSettings.model_fields))
        raise ConfigError(f"{WHERE}.{unknown[0]}: unknown setting; known here: {known}", field=unknown[0])
    try:
        return BackendSettings.model_validate(ours)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{WHERE}.{name}: {first['input']!r} is not valid: {message}", field=name) from None
