"""Settings that `tiered up` hands on: a TOML file with ``[worker]`` and ``[coordinator]`` tables, and ``--set``.

It only sorts them by service. Whether a setting exists and its value is good, the service itself decides
and says.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tiered.config import mask_secrets
from tiered.errors import ConfigError

SERVICES: Final = ("worker", "coordinator")
_SETTING: Final = re.compile(r"[a-z0-9]+(?:[._][a-z0-9]+)*")
"""What a flag and an environment variable say alike."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """Dotted keys and their values as text, for each service."""

    worker: Mapping[str, str] = field(default_factory=dict)
    coordinator: Mapping[str, str] = field(default_factory=dict)


def read_overrides(file: Path | None, assignments: Iterable[str]) -> Overrides:
    """Merge file < assignments (``worker.pool.policy=sieve``).

    Errors: ConfigError when the file cannot be read or a key does not start with a service's name.
    """
    merged: dict[str, dict[str, str]] = {service: {} for service in SERVICES}
    if file is not None:
        for key, value in _flatten(_read(file)):
            _place(merged, key, value, where=str(file))
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(
                f"--set: {assignment!r} is not KEY=VALUE; write it like --set worker.pool.policy=sieve",
                field="set",
            )
        _place(merged, key.strip(), value.strip(), where="--set")
    return Overrides(**merged)


def as_flags(settings: Mapping[str, str]) -> list[str]:
    """``--set key=value`` for each that anybody may see, in order: every user of the machine reads command lines."""
    shown = [(key, value) for key, value in settings.items() if not _is_secret(key, value)]
    return [part for key, value in shown for part in ("--set", f"{key}={value}")]


def as_environment(settings: Mapping[str, str], *, prefix: str) -> dict[str, str]:
    """The others, as the service reads them: ``TIERED_WORKER_CLUSTER__SECRET``."""
    hidden = [(key, value) for key, value in settings.items() if _is_secret(key, value)]
    return {prefix + key.upper().replace(".", "__"): value for key, value in hidden}


def _is_secret(key: str, value: str) -> bool:
    return key == "redis.url" or mask_secrets(key, value) != value


def _place(merged: dict[str, dict[str, str]], key: str, value: str, *, where: str) -> None:
    service, _, setting = key.partition(".")
    if service not in SERVICES or not setting:
        raise ConfigError(
            f"{key}: unknown setting (from {where}); begin it with worker. or coordinator., such as "
            "worker.pool.policy",
            field=key,
        )
    if not _SETTING.fullmatch(setting):
        raise ConfigError(
            f"{key}: unknown setting (from {where}); keys are made of lower-case letters, digits, dots and single "
            "underscores",
            field=key,
        )
    if "\0" in value:
        raise ConfigError(f"{key}: a null character (from {where}) is in no setting; leave it out", field=key)
    merged[service][setting] = value


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"--config: cannot read {file}: {error.strerror}; give a readable TOML file", field="config"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {file} is not valid TOML: {error}", field="config") from None
    except RecursionError:
        raise ConfigError(
            f"--config: {file} is nested more deeply than any settings; write [worker] and [coordinator] tables",
            field="config",
        ) from None


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat += _flatten(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", str(value)))
    return flat
