"""The worker's settings: its own groups beside those it shares with the coordinator."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from tiered.addresses import SOCKET_PATH_BYTES_MAX, WILDCARDS, default_worker_socket, is_loopback, with_node
from tiered.config import ByteSize, LogSettings, PoolSettings, Port, RedisSettings, Seconds, SettingsGroup
from tiered.tracing import TracingSettings

ENV_PREFIX: Final = "TIERED_WORKER_"


class NodeSettings(SettingsGroup):
    """Who this node is and where it is reached.

    In socket and advertise_host, ``{node}`` stands for the node's name: containers of one kind share their settings.
    """

    name: str = Field(default_factory=socket.gethostname, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    socket: Path = Field(default_factory=default_worker_socket)
    """Unix socket for the engines beside us; who may open it may use the cache."""
    peer_host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Address to listen on for other workers."""
    peer_port: Port = 0
    advertise_host: str = ""
    """Address that other workers use; empty means peer_host."""
    metrics_host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    metrics_port: Port = 0

    @field_validator("socket", mode="before")
    @classmethod
    def _name_socket(cls, value: object, info: ValidationInfo) -> object:
        return _named(str(value), info) if isinstance(value, Path | str) else value

    @field_validator("advertise_host")
    @classmethod
    def _name_address(cls, value: str, info: ValidationInfo) -> str:
        return _named(value, info)

    @field_validator("advertise_host")
    @classmethod
    def _check_reachable(cls, value: str, info: ValidationInfo) -> str:
        listens_on = info.data.get("peer_host", "")
        if not value and listens_on in WILDCARDS:
            raise ValueError(
                f"node.peer_host {listens_on} is every address of this machine: say which one others use"
            )
        return value

    @field_validator("socket")
    @classmethod
    def _check_socket(cls, value: Path) -> Path:
        if len(os.fsencode(value)) > SOCKET_PATH_BYTES_MAX:
            raise ValueError(f"a Unix socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes; choose a shorter one")
        return value


def _named(text: str, info: ValidationInfo) -> str:
    return with_node(text, info.data.get("name", ""))


class ClusterSettings(SettingsGroup):
    """How this node takes part in the cluster."""

    secret: str = Field(default="", max_length=512, validate_default=True)
    """Shared by all workers; proven, never sent. Empty only where nobody else can reach peer_host."""
    accepted_secret: str = Field(default="", max_length=512)
    """Who proves this one is answered too; for changing the secret node by node."""
    lease_ttl_s: Seconds = 5.0
    heartbeat_s: Seconds = 1.0
    announce_interval_s: Seconds = 0.05
    peer_timeout_s: Seconds = 2.0
    """Of one step of a fetch from a peer."""
    drain_on_stop_s: float = Field(default=0.0, ge=0, le=86_400)
    """For how long an orderly stop may first move to Redis what no other node has; 0: it does not. Keep it, and four
    seconds, below what the one who stops it waits before it kills."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Those that others may prove; this node itself proves the first."""
        return (self.secret, self.accepted_secret) if self.accepted_secret else (self.secret,)

    @field_validator("accepted_secret")
    @classmethod
    def _check_accepted_secret(cls, value: str, info: ValidationInfo) -> str:
        if value and not info.data.get("secret"):
            raise ValueError("cluster.secret is empty, so that anybody is answered; set that one first")
        return value

    @field_validator("heartbeat_s")
    @classmethod
    def _check_heartbeat(cls, value: float, info: ValidationInfo) -> float:
        ttl = info.data.get("lease_ttl_s")
        if ttl is not None and value * 2 > ttl:
            raise ValueError(f"it must be at most half of cluster.lease_ttl_s ({ttl:g} s)")
        return value


class JournalSettings(SettingsGroup):
    """What the next life of this node finds of the blocks that were hot in this one."""

    mode: Literal["off", "batched", "strict"] = "batched"
    """off: nothing is kept. batched: written behind, every 100 ms. strict: commits are answered once durable."""
    path: str = ""
    """The journal's file; empty means tiered-NODE.journal beside node.socket."""
    keep_on_stop: bool = False
    """Keep pool and journal after an orderly stop too, as after a kill."""


class WhySettings(SettingsGroup):
    """What this node remembers of what happened to blocks, for ``tiered why``."""

    events_max: int = Field(default=50_000, ge=100, le=10_000_000)
    """An event of several blocks counts once for each."""
    bytes_max: ByteSize = 32 << 20
    """Of memory; whichever bound is met first counts."""


class Settings(SettingsGroup):
    cluster: ClusterSettings = ClusterSettings()
    node: NodeSettings = Field(default_factory=NodeSettings)
    pool: PoolSettings = PoolSettings()
    redis: RedisSettings = RedisSettings()
    journal: JournalSettings = JournalSettings()
    why: WhySettings = WhySettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()

    @property
    def journal_path(self) -> Path:
        """Found again by the next life of this node, which has the same name and socket."""
        return Path(self.journal.path or self.node.socket.with_name(f"tiered-{self.node.name}.journal"))

    @field_validator("node")
    @classmethod
    def _check_secret_where_others_reach_us(cls, value: NodeSettings, info: ValidationInfo) -> NodeSettings:
        cluster = info.data.get("cluster")
        if cluster is not None and not cluster.secret and not is_loopback(value.peer_host):
            raise ValueError(
                f"others can reach node.peer_host {value.peer_host}, so peers must prove who they are: "
                "set cluster.secret, the same for all workers, or listen on 127.0.0.1"
            )
        return value
