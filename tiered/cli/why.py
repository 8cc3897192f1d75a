"""``tiered why``: where a block is and what happened to it; or where a prompt's blocks are, and why not all are."""

from __future__ import annotations

from typing import Annotated

import typer

from tiered.cli.api import CoordinatorClient, CoordinatorOption, connect
from tiered.cli.explained import BlockWhy, event_line, place_lines, silent_lines
from tiered.cli.output import JsonFlag, human_count, print_json
from tiered.cli.prompts import ModelOption, Run, ScopeCoverage, TenantOption, read_tokens
from tiered.errors import ConfigError
from tiered.types import HASH_BYTES


def why_command(
    block: Annotated[
        str | None, typer.Argument(metavar="[HASH]", help="A block's hash in hex.", show_default=False)
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="FILE",
            help="Or a prompt's token ids: a JSON list, or numbers with blanks between; - is standard input.",
            show_default=False,
        ),
    ] = None,
    tenant: TenantOption = None,
    model: ModelOption = None,
    coordinator: CoordinatorOption = None,
    json: JsonFlag = False,
) -> None:
    """Tell where a block is, what happened to it, and why it is not where it should be."""
    if (block is None) == (prompt is None):
        raise ConfigError("why: name one block by its hash, or a prompt by --prompt FILE", field="why")
    if block is not None:
        _check(block)
        with connect(coordinator) as client:
            found = client.block_why(block)
        if json:
            print_json(found)
        else:
            _print_block(found)
        return
    assert prompt is not None
    if tenant is None:
        raise ConfigError("--tenant: say whose prompt it is", field="tenant")
    asked = {"tenant": tenant, "tokens": _tokens(prompt)} | ({} if model is None else {"model": model})
    with connect(coordinator) as client:
        scopes = client.prefixes(asked).scopes
        missing = [_first_missing(client, scope) for scope in scopes]
    if json:
        print_json({"scopes": scopes, "missing": missing})
        return
    for scope, first in zip(scopes, missing, strict=True):
        _print_prompt(scope, first)


def _check(block: str) -> None:
    if len(block) != 2 * HASH_BYTES or not all(digit in "0123456789abcdefABCDEF" for digit in block):
        raise ConfigError(f"hash: {block!r} is not {2 * HASH_BYTES} hexadecimal digits", field="hash")


def _tokens(path: str) -> list[int]:
    try:
        return read_tokens(path)
    except ConfigError as error:
        said = str(error).replace("--tokens", "--prompt")
        raise ConfigError(f"{said}; token ids are read here, text is not", field="prompt") from None


def _first_missing(client: CoordinatorClient, scope: ScopeCoverage) -> BlockWhy | None:
    """The first block that is nowhere, if anybody remembers it."""
    if scope.covered_blocks == scope.blocks:
        return None
    return client.block_why_if_known(scope.hashes[scope.covered_blocks])


def _print_block(found: BlockWhy) -> None:
    print(f"block {found.hash}")
    print("now:")
    for line in place_lines(found):
        print(f"  {line}")
    print("what happened, oldest first:")
    for event in found.history:
        print(f"  {event_line(event, with_block=False)}")
    if not found.history:
        print("  nobody remembers anything")
    for line in silent_lines(found.silent):
        print(line)
    print(found.note)


def _print_prompt(scope: ScopeCoverage, missing: BlockWhy | None) -> None:
    if scope.model is not None:
        print(f"{scope.model} {scope.weights_version}, rank tp {scope.tp_rank} pp {scope.pp_rank}:")
    if not scope.blocks:
        print("the prompt fills no block, and only full blocks are kept")
        return
    for run in scope.runs:
        print(f"  {_span(run):<16}  {_where(run)}")
    if scope.n_runs > len(scope.runs):
        print(f"  and {human_count(scope.n_runs - len(scope.runs))} more runs")
    if scope.covered_blocks == scope.blocks:
        print("every block is somewhere")
        return
    block_hash = scope.hashes[scope.covered_blocks]
    print(f"why block {scope.covered_blocks}, the first that is nowhere, is missing:")
    if missing is None:
        print(f"  {block_hash}: nobody remembers it; it was never stored, or too long ago")
    else:
        _print_block(missing)


def _span(run: Run) -> str:
    last = run.first_block + run.blocks - 1
    return f"blocks {run.first_block}-{last}" if run.blocks > 1 else f"block {last}"


def _where(run: Run) -> str:
    more = [f"{run.n_nodes - len(run.nodes)} more nodes"] if run.n_nodes > len(run.nodes) else []
    return ", ".join([*run.nodes, *more, *(["redis"] if run.redis else [])]) or "nowhere"
