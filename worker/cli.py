"""The worker's command line: flags become settings, errors become one sentence and exit code 2."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Final

import typer

from tiered.log import configure_logging
from tiered.service import POOL, VersionFlag, require_extras, run_command, start_service
from worker.settings import ENV_PREFIX, Settings

NAME: Final = "tiered-worker"


def work(
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    node: Annotated[str | None, typer.Option(help="This node's name (node.name).")] = None,
    socket: Annotated[Path | None, typer.Option(help="Unix socket for engines (node.socket).")] = None,
    peer_host: Annotated[str | None, typer.Option(help="Address for other workers (node.peer_host).")] = None,
    peer_port: Annotated[int | None, typer.Option(help="Port for them; 0 takes a free one (node.peer_port).")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of /metrics (node.metrics_port).")] = None,
    redis_url: Annotated[str | None, typer.Option(help="The shared Redis (redis.url).")] = None,
    namespace: Annotated[str | None, typer.Option(help="Prefix of the cluster's keys (redis.namespace).")] = None,
    hot_bytes: Annotated[str | None, typer.Option(help="Size of the pool, such as 4GiB (pool.bytes).")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda:N (pool.device).")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting by its dotted key; repeatable."),
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Print every setting with its origin, and start nothing.")
    ] = False,
    version: VersionFlag = False,
) -> None:
    """Own one node's KV block pool, serve the engines beside it and the workers elsewhere."""
    flags: dict[str, object] = {
        "node.name": node,
        "node.socket": socket,
        "node.peer_host": peer_host,
        "node.peer_port": peer_port,
        "node.metrics_port": metrics_port,
        "redis.url": redis_url,
        "redis.namespace": namespace,
        "pool.bytes": hot_bytes,
        "pool.device": device,
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
    """Entry point of ``tiered-worker`` and ``python -m worker``."""
    run_command(NAME, work)


def _run(settings: Settings) -> None:
    require_extras(POOL)
    configure_logging(settings.log)
    # Not at the top: what --check-config and --help say should not wait for torch to be imported.
    from worker.app import serve

    asyncio.run(serve(settings, on_ready=lambda line: print(line, flush=True)))
