"""``tiered evictions``: what left, was refused or was missed of late; once, or as it happens."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Annotated, Final
from urllib.parse import urlencode

import msgspec
import typer

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.explained import Evictions, event_line, silent_lines
from tiered.cli.output import JsonFlag, print_json

POLL_S: Final = 1.0
LIMIT_MAX: Final = 500
"""Of the coordinator: what one answer has of a node."""

REDIS: Final = "redis"


def evictions_command(
    tenant: Annotated[str | None, typer.Option(help="Of this tenant's blocks alone.", show_default=False)] = None,
    node: Annotated[
        str | None, typer.Option(help="What this node tells alone; redis for Redis.", show_default=False)
    ] = None,
    what: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND", help="This kind alone, such as evicted or refused; may be repeated; all for every kind."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=LIMIT_MAX, help="How many at most.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")] = False,
    coordinator: CoordinatorOption = None,
    json: JsonFlag = False,
) -> None:
    """List what happened of late to blocks, with the reasons; the newest last."""
    asked: list[tuple[str, str]] = [("what", kind) for kind in what or ()]
    asked += [(name, value) for name, value in (("tenant", tenant), ("node", node)) if value is not None]
    with connect(coordinator) as client:
        found = client.evictions(urlencode([("limit", str(limit)), *asked]))
        newest_last = msgspec.structs.replace(found, events=found.events[::-1])
        if json and not follow:
            print_json(newest_last)
            return
        said = _print(newest_last, json=json, said=frozenset())
        if not found.events and not json:
            print("nothing of this kind is remembered", file=sys.stderr, flush=True)
        is_behind = False
        while follow:
            if not is_behind:
                time.sleep(POLL_S)
            found = client.evictions(urlencode([("limit", str(LIMIT_MAX)), *asked, ("after", found.after)]))
            said = _print(found, json=json, said=said)
            is_behind = _is_full(found)


def _is_full(found: Evictions) -> bool:
    """Whether a node may have more to tell than one answer has. Redis tells all it has at once."""
    told = Counter(event.where for event in found.events if event.where != REDIS)
    return max(told.values(), default=0) >= LIMIT_MAX


def _print(found: Evictions, *, json: bool, said: frozenset[str]) -> frozenset[str]:
    """A line for each; who is silent is said once. Returns what has been said of that."""
    for event in found.events:
        if json:
            sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
        else:
            print(event_line(event, with_block=True))
    sys.stdout.flush()
    silent = silent_lines(found.silent)
    for line in silent:
        if line not in said:
            print(line, file=sys.stderr, flush=True)
    return frozenset(silent)
