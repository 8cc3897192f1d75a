"""``tiered stats``: tokens by tenant and by the tier that had them; once, or again and again."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.bodies import Stats
from tiered.cli.output import JsonFlag, human_count, human_share, print_json, print_table
from tiered.cli.stats_watch import EVERY_S, Form, watch
from tiered.cli.top.sample import cluster_of
from tiered.errors import ConfigError
from tiered.types import TokenCounts

COLUMNS = ("tenant", "asked", "hot", "peer", "redis", "missed", "hit")


def stats_command(
    watch_: Annotated[
        bool, typer.Option("--watch", "-w", help="Print it anew again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(min=0.5, max=3600, metavar="S", help=f"With --watch: seconds between; {EVERY_S:g} by default."),
    ] = None,
    coordinator: CoordinatorOption = None,
    json: JsonFlag = False,
) -> None:
    """Show how many tokens each tenant asked for and where they were found: asked = hot + peer + redis + missed."""
    if watch_:
        form = Form.JSON if json else Form.SCREEN if sys.stdout.isatty() else Form.LINES
        watch(cluster_of(coordinator), every_s=EVERY_S if every is None else every, form=form)
        return
    if every is not None:
        raise ConfigError("--every: it says how often to print; give it with --watch", field="every")
    with connect(coordinator) as client:
        stats = client.stats()
    if json:
        print_json(stats)
    else:
        print_table("", COLUMNS, token_rows(stats), total=True)


def token_rows(stats: Stats) -> list[list[str]]:
    """One row for each tenant, then the sum over all."""
    rows = [token_row(tenant, tokens) for tenant, tokens in sorted(stats.by_tenant.items())]
    return [*rows, token_row("all", stats.tokens)]


def token_row(name: str, tokens: TokenCounts) -> list[str]:
    counts = (tokens.asked, tokens.hot, tokens.peer, tokens.redis, tokens.missed)
    hit = tokens.hot + tokens.peer + tokens.redis
    return [name, *map(human_count, counts), human_share(hit, tokens.asked)]
