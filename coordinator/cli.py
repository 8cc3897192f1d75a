"""The coordinator's command line: flags become settings, errors become one sentence and exit code 2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from coordinator.settings import ENV_PREFIX, Settings
from tiered.log import configure_logging
from tiered.service import WEB, VersionFlag, require_extras, run_command, start_service

NAME: Final = "tiered-coordinator"


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
    version: VersionFlag = False,
) -> None:
    """Serve the API, the dashboard and the metrics of one cluster, and sweep after dead nodes."""
    flags: dict[str, object] = {
        "http.host": host,
        "http.port": port,
        "redis.url": redis_url,
        "redis.namespace": namespace,
    }
    start_service(
        NAME,
        Settings,
        _run,
        env_prefix=ENV_PREFIX,
        file=config,
        flags=flags,
        assignments=set_ or [],
        check_config=check_config,
    )


def main() -> None:
    """Entry point of ``tiered-coordinator`` and ``python -m coordinator``."""
    run_command(NAME, coordinate)


def _run(settings: Settings) -> None:
    require_extras(WEB)
    configure_logging(settings.log)
    # Not at the top: what --check-config and --help say should not wait for a web server to be imported.
    from coordinator.app import run

    run(settings, on_ready=lambda url: print(f"coordinator ready on {url}", flush=True))
