"""``tiered up``: a whole cluster on this machine until Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from tiered.cli.launcher import ClusterPlan, LocalCluster
from tiered.cli.output import print_lines
from tiered.cli.overrides import read_overrides
from tiered.config import mask_secrets, parse_bytes
from tiered.errors import ConfigError
from tiered.service import POOL, WEB, require_extras


def up_command(
    workers: Annotated[int, typer.Option(help="How many workers.")] = 3,
    coordinators: Annotated[
        int, typer.Option(help="How many coordinators; the second and further ones on any free ports.")
    ] = 1,
    port: Annotated[int, typer.Option(help="The coordinator's port; 0 for any free one.")] = 8080,
    hot_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Hot tier of each worker.")] = "256MiB",
    redis_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Memory of the embedded server.")] = "1GiB",
    redis_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="TIERED_REDIS_URL",
            help="Use this Redis or Valkey instead of the embedded one.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Prefix of the cluster's keys in Redis.")] = "tiered",
    peer_port_base: Annotated[
        int, typer.Option(help="First of the workers' ports for each other; 0 for any free ones.")
    ] = 0,
    metrics_port_base: Annotated[
        int, typer.Option(help="First of the workers' metrics ports; 0 for any free ones.")
    ] = 0,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML with [worker] and [coordinator] tables.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting, such as worker.pool.policy=sieve; repeatable."),
    ] = None,
) -> None:
    """Run a server, coordinators and some workers on this machine; what dies is started again."""
    require_extras({**WEB, **POOL})
    plan = ClusterPlan(
        n_workers=workers,
        n_coordinators=coordinators,
        port=port,
        peer_port_base=peer_port_base,
        metrics_port_base=metrics_port_base,
        hot_bytes=_size("--hot-bytes", hot_bytes),
        redis_bytes=_size("--redis-bytes", redis_bytes),
        redis_url=redis_url,
        namespace=namespace,
        overrides=read_overrides(config, set_ or []),
    )
    cluster = LocalCluster(plan)
    # SIGINT also where it is ignored, as a shell starts background jobs; SIGHUP not, which is how nohup starts them.
    ending = {signal.SIGINT, signal.SIGTERM}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ending.add(signal.SIGHUP)
    for number in ending:
        signal.signal(number, signal.default_int_handler)
    try:
        with cluster:
            _welcome(cluster)
            cluster.supervise()
    except KeyboardInterrupt:
        typer.echo("stopped")


def _size(flag: str, text: str) -> int:
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {text!r} is not a size; {error}", field=flag) from None
    if not isinstance(size, int) or size <= 0:
        raise ConfigError(f"{flag}: {text!r} is not above zero", field=flag)
    return size


def _welcome(cluster: LocalCluster) -> None:
    print_lines(
        [
            ("dashboard", f"{cluster.coordinator_url}/"),
            *(("coordinator", url) for url in cluster.coordinator_urls[1:]),
            ("redis", mask_secrets("url", cluster.redis_url)),
            *((worker.name, f"unix://{worker.socket_path}") for worker in cluster.workers),
            ("logs", str(cluster.run_dir)),
            ("stop", "Ctrl-C"),
        ]
    )
    if not cluster.announced:
        typer.echo(
            "another cluster runs on this machine already: "
            f"name this one with --coordinator {cluster.coordinator_url}"
        )
