"""How a Lua script is loaded and run: calls in, plain replies out, in one pipeline to each server concerned.

Knows nothing of what a script is for. Each call runs atomically by itself, on the server that has its first key. A
server that has forgotten a script (NOSCRIPT) is given it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import redis
from redis.exceptions import AskError, ClusterError, NoScriptError, ReadOnlyError, TryAgainError

from tiered.cluster.connection import Client, answered, pipelined
from tiered.cluster.routing import Command, Part
from tiered.errors import TierError

_ALLOW_OOM: Final = "#!lua flags=allow-oom\n"
"""A full server must still take what frees it, and the small records of who lives; SET is what it refuses."""


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    keys: Sequence[bytes]
    args: Sequence[Part]


def load(name: str, *preludes: str) -> Script:
    folder = resources.files("tiered.cluster") / "lua"
    parts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in (*preludes, name)]
    text = _ALLOW_OOM + "\n".join(parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def run(client: Client, script: Script, calls: Sequence[Call]) -> list[object]:
    """Run the calls; replies in order. Errors: TierError if any of them failed."""
    return answered(_try(client, script, calls))


_AWAY: Final = (
    TierError,
    redis.ConnectionError,
    redis.TimeoutError,
    ClusterError,
    AskError,
    TryAgainError,
    ReadOnlyError,
    NoScriptError,
)
"""What a server that is gone, that restarted meanwhile, or a slot that is moving, looks like."""

_REFUSES: Final = ("NOREPLICAS ", "MISCONF ", "BUSY ")
"""How the replies begin of a server that runs no script for now: too few replicas are in touch with it, it cannot
save to its disk, another script has it; redis-py has no classes for them. Other error replies are ours to hear of."""


def run_tolerant(client: Client, script: Script, calls: Sequence[Call]) -> list[object]:
    """Run the calls; None for one whose server did not run it, as long as another's did. Errors: as run()."""
    replies = _try(client, script, calls)
    lost = [_is_away(reply) for reply in replies]
    if not any(lost) or all(lost):
        return answered(replies)
    return answered([None if is_lost else reply for is_lost, reply in zip(lost, replies, strict=True)])


def _is_away(reply: object) -> bool:
    return isinstance(reply, _AWAY) or (isinstance(reply, redis.ResponseError) and str(reply).startswith(_REFUSES))


def _try(client: Client, script: Script, calls: Sequence[Call]) -> list[Any]:
    """The replies in order, or the exceptions in their places.

    redis-py's own Script object asks SCRIPT EXISTS before each pipeline, a round trip that only a restarted server
    ever needs. Here the calls that met NOSCRIPT, and so did nothing, are sent once more behind a SCRIPT LOAD.
    """
    if not calls:
        return []
    replies = pipelined(client, [_evalsha(script, call) for call in calls])
    missed = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if missed:
        loads = [Command(("SCRIPT LOAD", script.text), key) for key in {calls[i].keys[0] for i in missed}]
        again = pipelined(client, [*loads, *(_evalsha(script, calls[i]) for i in missed)])
        for i, reply in zip(missed, again[len(loads) :], strict=True):
            replies[i] = reply
    return replies


def _evalsha(script: Script, call: Call) -> Command:
    return Command(("EVALSHA", script.sha, len(call.keys), *call.keys, *call.args), call.keys[0])
