"""The frame that the services' command lines share: settings in, one sentence and exit code 2 out.

Knows how a service is started from its settings; not which services there are, nor what they do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import typer
from pydantic import BaseModel

from tiered.config import describe_settings, load_settings, parse_assignments
from tiered.errors import ConfigError

S = TypeVar("S", bound=BaseModel)


def start_service(
    name: str,
    model: type[S],
    run: Callable[[S], None],
    *,
    env_prefix: str,
    file: Path | None,
    flags: Mapping[str, object],
    assignments: Sequence[str],
    check_config: bool,
) -> None:
    """Load the settings and run the service, or print every setting with its origin and start nothing.

    flags: dotted keys, None for what was not given; assignments: KEY=VALUE, which win over flags.
    Errors: typer.Exit(2) after one sentence on standard error for a ConfigError.
    """
    try:
        given = {**flags, **parse_assignments(assignments)}
        loaded = load_settings(model, file=file, env_prefix=env_prefix, flags=given)
        if check_config:
            for key, value, origin in describe_settings(loaded):
                print(f"{key} = {value}  ({origin})")
            return
        run(loaded.settings)
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def run_command(name: str, command: Callable[..., None]) -> None:
    """Parse the command line of a service that is one command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name=name)(command)
    app(prog_name=name)
