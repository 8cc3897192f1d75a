"""The coordinator's settings: its own groups beside those it shares with the workers.

Owns their defaults and bounds; where the values come from is :func:`tiered.config.load_settings`' business.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationInfo, field_validator

from tiered.addresses import WILDCARDS, is_loopback, with_node
from tiered.config import LogSettings, Port, RedisSettings, Seconds, SettingsGroup

ENV_PREFIX: Final = "TIERED_COORDINATOR_"

_TOKEN_CHARS_MAX: Final = 512
_TOKEN: Final = re.compile(r"[\x21-\x7e]*")
"""What a header can carry and a shell does not tear apart."""


class HttpSettings(SettingsGroup):
    """Where the API and the dashboard listen, in which way, and who is let in there."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    port: Port = 8080
    advertise_host: str = Field(default="", max_length=255)
    """Under which others find us, as `/v1/leader` says; empty means host, or the machine's name where that is every
    address. ``{node}`` in it stands for the machine's name."""
    admin_token: str = Field(default="", max_length=_TOKEN_CHARS_MAX)
    """Sees and changes everything. Empty: whoever is on this machine may, which only loopback may offer."""
    read_token: str = Field(default="", max_length=_TOKEN_CHARS_MAX)
    """Sees everything and changes nothing."""
    tls_key: Path | None = None
    """The certificate's private key, PEM, without a passphrase."""
    tls_cert: Path | None = None
    """The certificate and those between it and its CA, PEM. Without both: plain HTTP."""

    @field_validator("advertise_host")
    @classmethod
    def _name_address(cls, value: str) -> str:
        if value in WILDCARDS or "/" in value:
            raise ValueError("it is a name or an address under which others find us, and nothing else; or empty")
        return with_node(value, socket.gethostname())

    @field_validator("admin_token", "read_token")
    @classmethod
    def _check_characters(cls, value: str) -> str:
        if not _TOKEN.fullmatch(value):
            raise ValueError("a token is made of printable ASCII characters without spaces")
        return value

    @field_validator("admin_token")
    @classmethod
    def _check_token_where_others_reach_us(cls, value: str, info: ValidationInfo) -> str:
        host = info.data.get("host", "127.0.0.1")
        if not value and not is_loopback(host):
            raise ValueError(
                f"others can reach http.host {host}, so callers need a token: set http.admin_token, "
                "or listen on 127.0.0.1"
            )
        return value

    @field_validator("read_token")
    @classmethod
    def _check_read_token(cls, value: str, info: ValidationInfo) -> str:
        admin_token = info.data.get("admin_token")
        if value and admin_token == "":
            raise ValueError("without http.admin_token everybody on this machine may change things: set that, too")
        if value and admin_token == value:
            raise ValueError("it is the admin token as well, so that its holders could change things: make two")
        return value

    @field_validator("tls_cert")
    @classmethod
    def _check_both(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if "tls_key" in info.data and (value is None) != (info.data["tls_key"] is None):
            raise ValueError("TLS needs a certificate and its key: set both http.tls_cert and http.tls_key, or none")
        return value


class ClusterSettings(SettingsGroup):
    """How this replica asks the nodes, and how often it looks at the shared state."""

    secret: str = Field(default="", max_length=512)
    """The workers' own, so that they answer when asked why a block is, or is not, there; proven, never sent."""

    sweep_interval_s: Seconds = 2.0
    """Between two rounds that retire lapsed nodes and sweep what they left in the directory."""
    snapshot_interval_s: Seconds = 1.0
    """Between two reads of the view that the API, the dashboard and the metrics show."""
    leader_lease_s: Seconds = 5.0
    """Of the replica that leads, renewed at a third of it; another takes over when it has lapsed."""
    share_interval_s: Seconds = 0.5
    """Between two rounds in which the leader lends the tenants' totals to the nodes."""
    share_settle_s: Seconds = 5.0
    """How long after Redis lost the shares nobody is raised: at least the workers' cluster.lease_ttl_s."""


class Settings(SettingsGroup):
    http: HttpSettings = HttpSettings()
    redis: RedisSettings = RedisSettings()
    log: LogSettings = LogSettings()
    cluster: ClusterSettings = ClusterSettings()
