"""The coordinator's command line: flags become settings, errors become one sentence and exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from coordinator.settings import ENV_PREFIX, Settings
from tiered.config import Loaded, describe_settings, load_settings, parse_assignments
from tiered.errors import ConfigError
from tiered.log import configure_logging


def coordinate(
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (http.host).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one (http.port).")] = None,
    redis_url: Annotated[str | None, typer.Option(help="The shared Redis (redis.url).")] = None,
    namespace: Annotated[str | None, typer.Option(help="Prefix of the cluster's keys (redis.namespace).")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting by its dotted key; repeatable."),
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Print every setting with its origin, and start nothing.")
    ] = False,
) -> None:
    """Serve the API, the dashboard and the metrics of one cluster, and sweep after dead nodes."""
    flags: dict[str, object] = {
        "http.host": host,
        "http.port": port,
        "redis.url": redis_url,
        "redis.namespace": namespace,
    }
    try:
        loaded = load_settings(
            Settings, file=config, env_prefix=ENV_PREFIX, flags=flags | parse_assignments(set_ or [])
        )
        if check_config:
            _print_settings(loaded)
            return
        configure_logging(loaded.settings.log)
        # Not at the top: what --check-config and --help say should not wait for a web server to be imported.
        from coordinator.app import run

        run(loaded.settings, on_ready=_say_ready)
    except ConfigError as error:
        _refuse(error)


def main() -> None:
    """Entry point of ``tiered-coordinator`` and ``python -m coordinator``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name="tiered-coordinator")(coordinate)
    app(prog_name="tiered-coordinator")


def _print_settings(loaded: Loaded[Settings]) -> None:
    for key, value, origin in describe_settings(loaded):
        print(f"{key} = {value}  ({origin})")


def _say_ready(url: str) -> None:
    print(f"coordinator ready on {url}", flush=True)


def _refuse(error: ConfigError) -> NoReturn:
    print(f"tiered-coordinator: {error}", file=sys.stderr)
    raise typer.Exit(2)
