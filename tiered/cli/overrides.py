"""Settings that `tiered up` hands on: a TOML file with ``[worker]`` and ``[coordinator]`` tables, and ``--set``.

It only sorts them by service. Whether a setting exists and its value is good, the service itself decides
and says.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tiered.errors import ConfigError

SERVICES: Final = ("worker", "coordinator")


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
    """``--set key=value`` for each, in order."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def _place(merged: dict[str, dict[str, str]], key: str, value: str, *, where: str) -> None:
    service, _, setting = key.partition(".")
    if service not in SERVICES or not setting:
        raise ConfigError(
            f"{key}: unknown setting (from {where}); begin it with worker. or coordinator., such as "
            "worker.pool.policy",
            field=key,
        )
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


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat += _flatten(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", str(value)))
    return flat
