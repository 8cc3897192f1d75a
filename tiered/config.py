"""Settings: frozen models built once, each value with the place it came from.

Every service has one settings model made of groups (``redis``, ``pool``, ...), loaded by :func:`load_settings` in the
order defaults < TOML file < environment < flags. An unknown key anywhere stops the start. ``KEY_file`` names a file
that holds the value of KEY, so that a secret is neither in the environment nor on a command line.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from tiered.errors import ConfigError
from tiered.redis_url import parse_redis_url, with_password

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_PASSWORD_OPTION = re.compile(r"(password=)[^&]*")
_FILE = "_file"
_FILE_BYTES_MAX = 64 << 10


def parse_bytes(value: object) -> object:
    """``"512MiB"`` -> 536870912; integers pass; anything else is left for the validator to refuse."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(digits) :].strip()
    try:
        return int(float(digits) * _UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        raise ValueError("write a size as bytes or with KiB, MiB, GiB or TiB, such as 512MiB") from None


ByteSize = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0, le=1 << 50)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class SettingsGroup(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class RedisSettings(SettingsGroup):
    """The shared tier. Every call ends within its deadline; an unreachable server means a miss."""

    password: str = Field(default="", max_length=512)
    """Of the servers, in the place of one in the URL; the URL has it from here on."""
    url: str = "redis://127.0.0.1:6379"
    namespace: str = Field(default="tiered", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    partitions: int = Field(default=1, ge=1, le=256)
    """Into how many parts the blocks are dealt: 1 on one server, a few times the masters on a Redis Cluster. A power
    of two, the same for all that share the namespace, from its first use on."""
    connect_timeout_s: Seconds = 1.0
    control_timeout_s: Seconds = 2.0
    """Of one control call: membership, tenants, announcements."""
    lookup_timeout_s: Seconds = 0.05
    """Of one lookup on an engine's request path."""
    value_timeout_s: Seconds = 2.0
    """Of one socket operation while block bytes move."""
    breaker_failures: int = Field(default=3, ge=1, le=1_000)
    """Failures in a row that open the breaker: lookups then answer "miss" at once."""
    breaker_open_s: Seconds = 1.0
    """How long it stays open before one call probes the server."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str, info: ValidationInfo) -> str:
        password = info.data.get("password")
        if password:
            value = with_password(value, password)
        parse_redis_url(value)
        return value

    @field_validator("partitions")
    @classmethod
    def _check_partitions(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("partitions are a power of two from 1 to 256")
        return value


class PoolSettings(SettingsGroup):
    """The hot tier: one pool of whole blocks."""

    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    bytes: ByteSize = 256 << 20
    policy: str = "hazard"
    demote: Literal["evicted", "reused", "always", "never"] = "evicted"
    """Which evicted blocks go to Redis: all, those touched at least twice, none."""
    free_target: float = Field(default=0.05, ge=0.0, le=0.5)
    """Share of the pool kept free by demoting ahead of need."""
    match_lease_s: Seconds = 60.0
    """A lookup's pins end by themselves after this long."""


class LogSettings(SettingsGroup):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"
    """auto: text on a terminal, JSON elsewhere."""


S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """Settings and, for each dotted key, where its value came from."""

    settings: S
    origins: Mapping[str, str]


def load_settings(
    model: type[S],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    env_prefix: str,
    flags: Mapping[str, object] | None = None,
) -> Loaded[S]:
    """Merge defaults < file < environment < flags and validate once.

    Environment: ``<env_prefix>GROUP__FIELD``, such as ``TIERED_WORKER_REDIS__URL``; flags: dotted keys, None
    means "not given". Files named by ``KEY_file`` are read here, once. Errors: ConfigError naming the key, its origin
    and the fix.
    """
    origins: dict[str, str] = {}
    merged: dict[str, Any] = {}
    if file is not None:
        for key, value in _flatten(_read_toml(file)).items():
            _place(merged, origins, key, value, f"file {file}")
    for name, text in sorted((os.environ if environ is None else environ).items()):
        if name.startswith(env_prefix):
            key = name[len(env_prefix) :].lower().replace("__", ".")
            _place(merged, origins, key, text, f"environment {name}")
    for key, value in (flags or {}).items():
        if value is not None:
            _place(merged, origins, key, value, "the command line")
    for key, value in _flatten(merged).items():
        if key.endswith(_FILE) and not _has(model, key) and _has(model, key.removesuffix(_FILE)):
            _place_from_file(merged, origins, key, str(value))
    try:
        settings = model.model_validate(merged)
    except ValidationError as error:
        raise _config_error(error, origins, model) from None
    for key in _flatten(settings.model_dump()):
        origins.setdefault(key, "default")
    return Loaded(settings, origins)


def parse_assignments(assignments: Sequence[str]) -> dict[str, object]:
    """``["http.port=80"]`` -> ``{"http.port": "80"}``: what ``--set KEY=VALUE`` says, as flags."""
    flags: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not key or not equals:
            raise ConfigError(f"--set: {assignment!r} is not KEY=VALUE, such as redis.namespace=blue", field="--set")
        flags[key.strip()] = value
    return flags


def describe_settings(loaded: Loaded[S]) -> list[tuple[str, str, str]]:
    """(key, value, origin) of every setting, for ``--check-config``; passwords in URLs are masked."""
    rows = []
    for key, value in sorted(_flatten(loaded.settings.model_dump()).items()):
        rows.append((key, mask_secrets(key, value), loaded.origins[key]))
    return rows


def mask_secrets(key: str, value: object) -> str:
    text = str(value)
    if key.endswith(("secret", "token", "password")) and value:
        return "***"
    if "://" in text:
        scheme, rest = text.split("://", 1)
        rest = _PASSWORD_OPTION.sub(r"\1***", rest)
        return f"{scheme}://***@{rest.rsplit('@', 1)[1]}" if "@" in rest else f"{scheme}://{rest}"
    return text


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config: cannot read {file}: {error.strerror}; give a readable TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config: {file} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"config: {file} is nested too deeply; write [section] and key = value") from None


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _place(tree: dict[str, Any], origins: dict[str, str], key: str, value: object, origin: str) -> None:
    *groups, leaf = key.split(".")
    for group in groups:
        branch = tree.setdefault(group, {})
        if not isinstance(branch, dict):
            raise ConfigError(f"{key}: {group!r} is a value, not a group of settings (from {origin})", field=key)
        tree = branch
    tree[leaf] = value
    origins[key] = origin


def _place_from_file(tree: dict[str, Any], origins: dict[str, str], key: str, path: str) -> None:
    """Put what the file holds in the place of the key that names it. Errors: ConfigError naming that key."""
    target = key.removesuffix(_FILE)
    origin = origins.pop(key)
    if target in origins:
        raise ConfigError(
            f"{target}: given (from {origins[target]}), and {key} names a file with it (from {origin}); "
            "give one of the two",
            field=target,
        )
    *groups, leaf = key.split(".")
    branch = tree
    for group in groups:
        branch = branch[group]
    del branch[leaf]
    try:
        value = _value_in(Path(path))
    except ValueError as error:
        raise ConfigError(f"{key}: {path!r} is not valid: {error} (from {origin})", field=key) from None
    _place(tree, origins, target, value, f"file {path}, which {origin} names")


def _value_in(file: Path) -> str:
    """Errors: ValueError with one sentence that shows nothing of what is in the file."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_FILE_BYTES_MAX + 1)
        text = data.decode("utf-8").strip()
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror}); put the value there, readable to us") from None
    except UnicodeDecodeError:
        raise ValueError("it is no text file; put the value there and nothing else") from None
    if len(data) > _FILE_BYTES_MAX:
        raise ValueError(f"it has more than {_FILE_BYTES_MAX} bytes; put the value there and nothing else")
    if not text:
        raise ValueError("it is empty; put the value there and nothing else")
    return text


def _config_error(error: ValidationError, origins: Mapping[str, str], model: type[BaseModel]) -> ConfigError:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    origin = f" (from {origins[key]})" if key in origins else ""
    if first["type"] == "extra_forbidden":
        return ConfigError(f"{key}: unknown setting{origin}; known here: {_known(model, key)}", field=key)
    message = first["msg"].removeprefix("Value error, ")
    value = first.get("input")
    shown = "" if isinstance(value, dict) else f" {mask_secrets(key, value)!r}"
    return ConfigError(f"{key}:{shown} is not valid: {message}{origin}", field=key)


def _known(model: type[BaseModel], key: str) -> str:
    return ", ".join(sorted(_group(model, key).model_fields))


def _has(model: type[BaseModel], key: str) -> bool:
    """Whether it is a setting, and not a group of them."""
    leaf = key.rsplit(".", 1)[-1]
    fields = _group(model, key).model_fields
    return leaf in fields and _inner(fields[leaf].annotation) is None


def _group(model: type[BaseModel], key: str) -> type[BaseModel]:
    """The group that a dotted key lies in, as far as there are such groups."""
    for name in key.split(".")[:-1]:
        inner = _inner(model.model_fields[name].annotation) if name in model.model_fields else None
        if inner is None:
            break
        model = inner
    return model


def _inner(annotation: object) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
