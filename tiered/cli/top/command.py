"""``tiered top``: the whole cluster on a terminal, as it changes, until somebody quits."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from tiered.cli.api import CoordinatorOption
from tiered.cli.top.sample import cluster_of
from tiered.errors import ConfigError
from tiered.service import require_extras


def top_command(
    every: Annotated[float, typer.Option(min=0.5, max=3600, metavar="S", help="Seconds between two looks.")] = 2.0,
    coordinator: CoordinatorOption = None,
) -> None:
    """Watch the cluster: hits by tier, bytes, nodes, tenants and alerts, live; ? lists the keys, q quits."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "top: it needs a terminal for its screen and its keys; `tiered stats --watch` prints to anything",
            field="top",
        )
    require_extras({"server": ("textual",)})
    cluster = cluster_of(coordinator)
    first = cluster.sample()  # what is wrong with the address or the token is said before a screen is opened
    # Textual takes a quarter of a second to import, which no other command should wait for.
    from tiered.cli.top.app import TopApp

    app = TopApp(cluster, first, every_s=every, clock=time.monotonic, catch_signals=True)
    app.run()
    if app.return_code:
        raise typer.Exit(app.return_code)
