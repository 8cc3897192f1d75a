"""The frame that the services' command lines share: settings in, one sentence and exit code 2 out.

Knows how a service is started from its settings; not which services there are, nor what they do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer
from pydantic import BaseModel

from tiered import __version__
from tiered.config import describe_settings, load_settings, parse_assignments
from tiered.errors import ConfigError

S = TypeVar("S", bound=BaseModel)


def _print_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(f"{context.info_name} {__version__}")
        raise typer.Exit


VersionFlag = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
]


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


WEB: Final = {"server": ("fastapi", "uvicorn", "fastapi_offline")}
POOL: Final = {"worker": ("torch",)}
"""Modules that what is started here cannot do without, by the extra that brings them."""


def require_extras(needs: Mapping[str, Sequence[str]]) -> None:
    """Before anything of it is imported. Errors: ConfigError naming what is not there, and how to get all of it."""
    lacking = {extra: [name for name in names if find_spec(name) is None] for extra, names in needs.items()}
    names = [name for each in lacking.values() for name in each]
    if names:
        extras = ",".join(extra for extra, each in lacking.items() if each)
        are = "is" if len(names) == 1 else "are"
        raise ConfigError(f"{', '.join(names)} {are} not installed; pip install 'tiered-kv[{extras}]'")


def run_command(name: str, command: Callable[..., None]) -> None:
    """Parse the command line of a service that is one command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name=name)(command)
    app(prog_name=name)
