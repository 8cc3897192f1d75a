"""``tiered prefixes``: which prefixes are used most, or where the blocks of one prompt are."""

from __future__ import annotations

from typing import Annotated

import typer

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.output import JsonFlag, human_count, print_json, print_table
from tiered.cli.prompts import (
    HashesOption,
    HotPrefixes,
    ModelOption,
    Run,
    ScopeCoverage,
    TenantOption,
    TokensOption,
    Whereabouts,
    question,
)

_NODES_SHOWN = 4


def prefixes_command(
    tenant: TenantOption = None,
    tokens: TokensOption = None,
    hashes: HashesOption = None,
    model: ModelOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Rows to list.")] = 20,
    coordinator: CoordinatorOption = None,
    json: JsonFlag = False,
) -> None:
    """Show the prefixes that saved most; or with --tokens or --hashes, which blocks of that prompt are where."""
    if tokens is None and hashes is None and tenant is None and model is None:
        with connect(coordinator) as client:
            used = client.hot_prefixes(limit)
        if json:
            print_json(used)
        else:
            _print_used(used)
        return
    asked = question(tenant=tenant, tokens=tokens, hashes=hashes, model=model) | {"limit": limit}
    with connect(coordinator) as client:
        found = client.prefixes(asked)
    if json:
        print_json(found)
    else:
        _print_found(found)


def _print_used(used: HotPrefixes) -> None:
    if not used.prefixes:
        print("no prefix has been used again yet")
        return
    rows = [
        [each.hash[:16], each.tenant, human_count(each.blocks), human_count(each.hits), _names(each.nodes)]
        for each in used.prefixes
    ]
    print_table("", ("last block", "tenant", "blocks", "hits", "nodes"), rows)


def _print_found(found: Whereabouts) -> None:
    for scope in found.scopes:
        print(_title(scope))
        print_table("", ("blocks", "hot on", "redis"), [_run_row(run) for run in scope.runs])
        if scope.n_runs > len(scope.runs):
            print(f"and {scope.n_runs - len(scope.runs)} more runs")
    if found.lag_s is None:
        print("where blocks are has not been read yet")


def _title(scope: ScopeCoverage) -> str:
    tiers = scope.tiers
    whose = ""
    if scope.model is not None:
        whose = f"{scope.model} {scope.weights_version}, rank tp {scope.tp_rank} pp {scope.pp_rank}: "
    return (
        f"{whose}{human_count(scope.blocks)} blocks, the first {human_count(scope.covered_blocks)} somewhere; "
        f"{human_count(tiers.hot)} hot, {human_count(tiers.redis)} in Redis, {human_count(tiers.nowhere)} nowhere"
    )


def _run_row(run: Run) -> list[str]:
    last = run.first_block + run.blocks - 1
    where = _names(run.nodes, n_nodes=run.n_nodes)
    return [f"{run.first_block}-{last}" if run.blocks > 1 else str(last), where, "yes" if run.redis else "-"]


def _names(nodes: list[str], *, n_nodes: int | None = None) -> str:
    shown = nodes[:_NODES_SHOWN]
    more = (len(nodes) if n_nodes is None else n_nodes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "") if shown else "-"
