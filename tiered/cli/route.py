"""``tiered route``: which node should have a prompt, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.output import JsonFlag, human_count, print_json, print_table
from tiered.cli.prompts import HashesOption, ModelOption, NodeRoute, Route, TenantOption, TokensOption, question

_COLUMNS = ("node", "first token", "uncached", "hot", "peer", "redis", "computed tokens", "waiting", "assumed")


def route_command(
    tenant: TenantOption = None,
    tokens: TokensOption = None,
    hashes: HashesOption = None,
    model: ModelOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Nodes to list.")] = 20,
    coordinator: CoordinatorOption = None,
    json: JsonFlag = False,
) -> None:
    """Rank the nodes for a prompt by expected time to first token, with the blocks each would use and compute."""
    asked = question(tenant=tenant, tokens=tokens, hashes=hashes, model=model) | {"limit": limit}
    with connect(coordinator) as client:
        found = client.route(asked)
    if json:
        print_json(found)
    else:
        _print(found)


def _print(found: Route) -> None:
    print(f"{human_count(found.blocks)} blocks of {found.block_tokens} tokens, model {found.model}")
    print_table("", _COLUMNS, [route_row(each) for each in found.nodes])
    for each in found.not_eligible:
        print(f"{each.node}: not eligible, {each.reason}")
    if found.unmeasured:
        print(f"not measured anywhere yet: {', '.join(found.unmeasured)}")
    if found.lag_s is None:
        print("where blocks are has not been read yet")


def route_row(route: NodeRoute) -> list[str]:
    return [
        route.node,
        _ms(route.expected_ttft_s),
        _ms(route.uncached_ttft_s),
        human_count(route.hot_blocks),
        human_count(route.peer_blocks),
        human_count(route.redis_blocks),
        human_count(route.computed_tokens),
        _ms(route.waiting_s),
        ", ".join(route.assumed) or "-",
    ]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1_000 * seconds:,.1f} ms"
