"""``tiered stats``: tokens by tenant and by the tier that had them."""

from __future__ import annotations

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.bodies import Stats
from tiered.cli.output import JsonFlag, human_count, human_share, print_json, print_table
from tiered.types import TokenCounts

_COLUMNS = ("tenant", "asked", "hot", "peer", "redis", "missed", "hit")


def stats_command(coordinator: CoordinatorOption = None, json: JsonFlag = False) -> None:
    """Show how many tokens each tenant asked for and where they were found: asked = hot + peer + redis + missed."""
    with connect(coordinator) as client:
        stats = client.stats()
    if json:
        print_json(stats)
    else:
        print_table("", _COLUMNS, token_rows(stats), total=True)


def token_rows(stats: Stats) -> list[list[str]]:
    """One row for each tenant, then the sum over all."""
    rows = [_row(tenant, tokens) for tenant, tokens in sorted(stats.by_tenant.items())]
    return [*rows, _row("all", stats.tokens)]


def _row(name: str, tokens: TokenCounts) -> list[str]:
    counts = (tokens.asked, tokens.hot, tokens.peer, tokens.redis, tokens.missed)
    hit = tokens.hot + tokens.peer + tokens.redis
    return [name, *map(human_count, counts), human_share(hit, tokens.asked)]
