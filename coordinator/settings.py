"""The coordinator's settings: its own groups beside those it shares with the workers.

Owns their defaults and bounds; where the values come from is :func:`tiered.config.load_settings`' business.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field, ValidationInfo, field_validator

from tiered.addresses import is_loopback
from tiered.config import LogSettings, Port, RedisSettings, Seconds, SettingsGroup

ENV_PREFIX: Final = "TIERED_COORDINATOR_"


class HttpSettings(SettingsGroup):
    """Where the API and the dashboard listen, and who may change things there."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    port: Port = 8080
    admin_token: str = Field(default="", max_length=512)
    """Asked of every change. Empty: changes are accepted without one, which only loopback may offer."""

    @field_validator("admin_token")
    @classmethod
    def _check_token_where_others_reach_us(cls, value: str, info: ValidationInfo) -> str:
        host = info.data.get("host", "127.0.0.1")
        if not value and not is_loopback(host):
            raise ValueError(
                f"others can reach http.host {host}, so changes need a token: set http.admin_token, "
                "or listen on 127.0.0.1"
            )
        return value


class ClusterSettings(SettingsGroup):
    """How often this replica looks at the shared state."""

    sweep_interval_s: Seconds = 2.0
    """Between two rounds that retire lapsed nodes and sweep what they left in the directory."""
    snapshot_interval_s: Seconds = 1.0
    """Between two reads of the view that the API, the dashboard and the metrics show."""


class Settings(SettingsGroup):
    http: HttpSettings = HttpSettings()
    redis: RedisSettings = RedisSettings()
    log: LogSettings = LogSettings()
    cluster: ClusterSettings = ClusterSettings()
