"""The server's settings: its own groups beside the log's that all services share.

Owns their defaults and bounds; where the values come from is :func:`tiered.config.load_settings`' business.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from tiered.addresses import SOCKET_PATH_BYTES_MAX, is_loopback
from tiered.config import ByteSize, LogSettings, Port, Seconds, SettingsGroup, parse_bytes
from tiered.tracing import TracingSettings

ENV_PREFIX: Final = "TIERED_SERVE_"

DEMO: Final = "demo"
"""The name of the model that `tiered demo` prepares."""

_PoolBytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=1 << 50)]


class ModelSettings(SettingsGroup):
    """Which model is served, and on what."""

    id: str = Field(default="", max_length=1_024)
    """A folder, a name in the Hugging Face cache, or ``demo``."""
    revision: str = Field(default="", max_length=256)
    """Of a model in the Hugging Face cache; empty for its main one."""
    name: str = Field(default="", max_length=256)
    """What clients call it, and part of what its blocks are. Empty: the folder's name, or id as it is. Engines that
    are to share blocks use one name."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: as the weights are stored."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    threads: int = Field(default=0, ge=0, le=1_024)
    """Of torch; 0 leaves the choice to it. Set it where a container may use fewer cores than it sees."""
    chat_template: Path | None = None
    """A Jinja file in the place of the model's own template."""


class ServerSettings(SettingsGroup):
    """Where we listen, and how we stop."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    port: Port = 8000
    grace_s: float = Field(default=20.0, ge=0, le=3_600)
    """After SIGTERM: for so long accepted requests may go on to their end; then they are cut. Keep it, and ten
    seconds, below what the one who stops us waits before it kills."""
    body_timeout_s: Seconds = 10.0
    """For a request's body to arrive."""
    send_timeout_s: Seconds = 30.0
    """A client that takes nothing of its stream for so long is taken to be gone."""


class CacheSettings(SettingsGroup):
    """Where the KV is kept. Whatever becomes of the cache, requests are answered."""

    socket: Path | None = None
    """The worker's Unix socket, or a folder in which workers have theirs: then one with the fewest engines. Without
    either the cache is in this process, and ours alone."""
    bytes: _PoolBytes = 256 << 20
    """Of the cache in this process; 0 for none. With a socket the pool is the worker's, and this has no meaning."""
    block_tokens: int = Field(default=16, ge=1, le=1_024)
    chunk_tokens: int = Field(default=128, ge=1, le=16_384)
    """Prompts are computed in chunks of so many tokens: a multiple of block_tokens, the same for all that share."""
    reuse: Literal["exact", "block"] = "exact"
    """exact: whole chunks; answers are those without a cache, bit for bit. block: every full block, equal up to the
    rounding of other kernel shapes."""
    keep_answers: bool = True
    """Keep the KV of answers too, so that a chat's next turn finds it. With exact, whole chunks of an answer are
    computed once more after it was given."""
    load_deadline_s: Seconds = 5.0
    """For bringing blocks from peers or Redis; what has not come by then is computed."""

    @field_validator("socket")
    @classmethod
    def _check_socket(cls, value: Path | None) -> Path | None:
        if value is not None and len(os.fsencode(value)) > SOCKET_PATH_BYTES_MAX:
            raise ValueError(f"a Unix socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes; choose a shorter one")
        return value

    @field_validator("chunk_tokens")
    @classmethod
    def _check_chunk(cls, value: int, info: ValidationInfo) -> int:
        block_tokens = info.data.get("block_tokens")
        if block_tokens is not None and value % block_tokens:
            raise ValueError(f"it must be a multiple of cache.block_tokens ({block_tokens})")
        return value


class AuthSettings(SettingsGroup):
    """Who may ask, and as which tenant."""

    keys_file: Path | None = None
    """TOML: a table ``[keys]`` from ``sha256:HEX`` of a key, or the key itself, to its tenant. Read again when it
    changes. Without one everybody is the tenant ``default``."""
    allow_anonymous: bool = False
    """Without keys, listen where others can reach us all the same."""


class LimitSettings(SettingsGroup):
    """What is taken on at once, and how much one request may ask for."""

    queue: int = Field(default=64, ge=1, le=10_000)
    """Requests that wait for the model, of all tenants; one more is refused with 429, or takes the place of the last
    of the tenant with the most."""
    new_tokens: int = Field(default=4_096, ge=1, le=1 << 20)
    """An answer's length at most."""
    context_tokens: int = Field(default=0, ge=0, le=1 << 24)
    """Prompt and answer together at most; 0 for what the model can."""
    prompts: int = Field(default=16, ge=1, le=1_024)
    """In one completions request."""
    body_bytes: ByteSize = 8 << 20


class Settings(SettingsGroup):
    model: ModelSettings = ModelSettings()
    auth: AuthSettings = AuthSettings()
    server: ServerSettings = ServerSettings()
    cache: CacheSettings = CacheSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()

    @field_validator("server")
    @classmethod
    def _check_keys_where_others_reach_us(cls, value: ServerSettings, info: ValidationInfo) -> ServerSettings:
        auth = info.data.get("auth")
        if auth is not None and not (auth.keys_file or auth.allow_anonymous or is_loopback(value.host)):
            raise ValueError(
                f"others can reach server.host {value.host}, so callers need keys: set auth.keys_file (--keys), "
                "listen on 127.0.0.1, or say --allow-anonymous"
            )
        return value
