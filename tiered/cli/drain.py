"""``tiered drain``: empty a node before it goes, and see how far it is."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Final

import typer

from tiered.cli.api import CoordinatorClient, CoordinatorOption, connect
from tiered.cli.output import JsonFlag, human_count, print_json
from tiered.errors import ConfigError
from tiered.types import DrainProgress, DrainState

EXIT_LEFT_BEHIND: Final = 1
_POLL_S: Final = 0.25


def drain_command(
    node: Annotated[str, typer.Argument(help="The node's name, as `tiered nodes` has it.")],
    coordinator: CoordinatorOption = None,
    wait: Annotated[bool, typer.Option(help="Show the progress until the node has left.")] = True,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait at most.")] = 600.0,
    cancel: Annotated[bool, typer.Option("--cancel", help="Call a drain off.")] = False,
    json: JsonFlag = False,
) -> int:
    """Move what only this node has to Redis, then let it leave the cluster.

    Exit code 1 when it left although Redis had no room for all of it.
    """
    with connect(coordinator) as client:
        if cancel:
            client.call_off_drain(node)
            print(f"the drain of {node} was called off")
            return 0
        progress = client.drain(node)
        if wait:
            progress = _watch(client, node, timeout_s=timeout)
    if json:
        print_json({"node": node, "drain": progress})
    elif not wait:
        print(f"{node} is asked to drain; see `tiered nodes`")
    else:
        print(_outcome(node, progress))
    return EXIT_LEFT_BEHIND if wait and progress.left_blocks else 0


def _watch(client: CoordinatorClient, node: str, *, timeout_s: float) -> DrainProgress:
    """Errors: ConfigError when it takes longer, and the drain goes on; or when it is asked for no more."""
    ends_at = time.monotonic() + timeout_s
    said = ""
    while True:
        progress = client.drain_progress(node)
        line = f"{node}: {human_count(progress.moved_blocks)} moved, {human_count(progress.left_blocks)} left"
        if line != said and progress.state is DrainState.DRAINING:
            print(line, file=sys.stderr, flush=True)
            said = line
        if progress.state is DrainState.DRAINED:
            return progress
        if said and progress.state is DrainState.NONE:
            raise ConfigError(
                f"{said}, and it drains no more: somebody called it off, its worker was started anew, or Redis lost "
                "the request; ask again",
                field="node",
            )
        if time.monotonic() >= ends_at:
            raise ConfigError(
                f"--timeout: {node} is not empty after {timeout_s:g} s and goes on ({line}); wait longer, or call it "
                "off with --cancel",
                field="--timeout",
            )
        time.sleep(_POLL_S)


def _outcome(node: str, progress: DrainProgress) -> str:
    moved = f"{human_count(progress.moved_blocks)} blocks that no other place had are in Redis now"
    if progress.left_blocks:
        return f"{node} has left; {moved}, {human_count(progress.left_blocks)} had no room there"
    return f"{node} has left; {moved}"
