"""The Lua scripts: loads them, lays out their KEYS and ARGV, turns replies into plain Python values.

One typed function per script; what each script promises stands at the top of its file in ``lua/``. Does not know
why a caller runs it. A function that takes many items sends them in one pipeline, and each script call runs
atomically by itself. A server that has forgotten a script (NOSCRIPT) is given it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from typing import Final, TypeAlias, TypeVar, cast

import redis

from tiered.cluster.connection import command, translated
from tiered.cluster.keys import Keys
from tiered.types import BlockHash, Epoch, NodeId, TenantId

Arg: TypeAlias = bytes | str | int
T = TypeVar("T")

HASHES_PER_CALL: Final = 256
"""Blocks one script call handles: about 1 ms of the server's time, which everyone else waits for."""

_NO_HASH: Final = BlockHash(b"")
_ALLOW_OOM: Final = "#!lua flags=allow-oom\n"
"""A full server must still take what frees it, and the small records of who lives; SET is what it refuses."""


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    keys: Sequence[bytes]
    args: Sequence[Arg]


def _load(name: str, *preludes: str) -> Script:
    folder = resources.files("tiered.cluster") / "lua"
    parts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in (*preludes, name)]
    text = _ALLOW_OOM + "\n".join(parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_RESERVE: Final = _load("reserve", "record", "books")
_COMMIT: Final = _load("commit", "record", "books")
_ABORT: Final = _load("abort", "record", "books")
_REMOVE: Final = _load("remove", "record", "books")
_TOUCH: Final = _load("touch", "record", "books")
_ANNOUNCE: Final = _load("announce", "record")
_SWEEP: Final = _load("sweep", "record")
_JOIN: Final = _load("join", "lives")
_RENEW: Final = _load("renew", "lives")
_RETIRE: Final = _load("retire", "lives")
_NODES: Final = _load("nodes")


def reserve(
    client: redis.Redis, keys: Keys, requests: Iterable[tuple[BlockHash, TenantId, int, int]], *, ttl_ms: int
) -> list[int]:
    """(hash, tenant, size in bytes, depth) -> the answer of reserve.lua, one call each."""
    calls = [
        Call(
            [
                keys.meta(block_hash),
                keys.block(block_hash),
                keys.tenant_blocks(tenant),
                keys.usage(),
                keys.limits(),
                keys.reservations(),
                keys.meta(_NO_HASH),
                keys.block(_NO_HASH),
                keys.tenant_blocks(TenantId("")),
            ],
            [block_hash, tenant, size, depth, ttl_ms],
        )
        for block_hash, tenant, size, depth in requests
    ]
    return cast(list[int], _run(client, _RESERVE, calls))


def commit(client: redis.Redis, keys: Keys, items: Sequence[tuple[BlockHash, TenantId]]) -> list[bool]:
    replies = _run(client, _COMMIT, _reservation_calls(keys, items))
    return [answer == 1 for reply in replies for answer in cast(list[int], reply)]


def abort(client: redis.Redis, keys: Keys, items: Sequence[tuple[BlockHash, TenantId]]) -> int:
    return sum(cast(list[int], _run(client, _ABORT, _reservation_calls(keys, items))))


def remove(client: redis.Redis, keys: Keys, hashes: Sequence[BlockHash]) -> int:
    fixed = [keys.usage(), keys.reservations(), keys.tenant_blocks(TenantId(""))]
    calls = []
    for batch in _batches(hashes):
        own = [key for h in batch for key in (keys.meta(h), keys.block(h))]
        calls.append(Call(fixed + own, batch))
    return sum(cast(list[int], _run(client, _REMOVE, calls)))


def touch(client: redis.Redis, keys: Keys, hashes: Sequence[BlockHash], tenant: TenantId) -> int:
    """One call, whatever the length, so that the whole prefix is ordered by one moment."""
    fixed = [keys.tenant_blocks(tenant), keys.tenant_blocks(TenantId(""))]
    call = Call(fixed + [keys.meta(h) for h in hashes], hashes)
    return cast(int, _run(client, _TOUCH, [call])[0])


def announce(
    client: redis.Redis,
    keys: Keys,
    node: NodeId,
    epoch: Epoch,
    changes: Iterable[tuple[Sequence[BlockHash], Sequence[BlockHash]]],
) -> int:
    """(stored, removed) of each call -> how many stamps changed in all."""
    calls = [
        Call(
            [keys.node_blocks(node, epoch), *(keys.meta(h) for h in (*stored, *removed))],
            [node, epoch, len(stored), *stored, *removed],
        )
        for stored, removed in changes
    ]
    return sum(cast(list[int], _run(client, _ANNOUNCE, calls)))


def sweep(client: redis.Redis, keys: Keys, node: NodeId, epoch: Epoch, *, batch: int) -> tuple[int, int]:
    """(hashes taken from the life's set, stamps removed)."""
    call = Call([keys.node_blocks(node, epoch), keys.meta(_NO_HASH)], [node, epoch, batch])
    taken, removed = cast(list[int], _run(client, _SWEEP, [call])[0])
    return taken, removed


def join(client: redis.Redis, keys: Keys, node: NodeId, info: bytes, *, lease_ms: int) -> Epoch:
    call = Call(
        [keys.epochs(), keys.nodes(), keys.node_lease(node), keys.node_stats(), keys.retired_tokens()],
        [node, info, lease_ms],
    )
    return Epoch(cast(int, _run(client, _JOIN, [call])[0]))


def renew(client: redis.Redis, keys: Keys, node: NodeId, epoch: Epoch, stats: bytes, *, lease_ms: int) -> int:
    call = Call([keys.nodes(), keys.node_lease(node), keys.node_stats()], [node, epoch, stats, lease_ms])
    return cast(int, _run(client, _RENEW, [call])[0])


def retire(client: redis.Redis, keys: Keys, node: NodeId, epoch: Epoch, *, how: str) -> bool:
    """how: "leave" or "lapsed"."""
    call = Call([keys.nodes(), keys.node_lease(node), keys.node_stats(), keys.retired_tokens()], [node, epoch, how])
    return _run(client, _RETIRE, [call])[0] == 1


def nodes(client: redis.Redis, keys: Keys) -> list[tuple[bytes, int, bytes | None]]:
    """(entry, lease left in ms, stats) of each registered life."""
    call = Call([keys.nodes(), keys.node_stats(), keys.node_lease(NodeId(""))], [])
    rows = cast(list[tuple[bytes, int, bytes | None]], _run(client, _NODES, [call])[0])
    return [(entry, lease_ms, stats) for entry, lease_ms, stats in rows]


def _reservation_calls(keys: Keys, items: Sequence[tuple[BlockHash, TenantId]]) -> list[Call]:
    fixed = [keys.usage(), keys.reservations()]
    calls = []
    for batch in _batches(items):
        own = [key for h, tenant in batch for key in (keys.meta(h), keys.block(h), keys.tenant_blocks(tenant))]
        calls.append(Call(fixed + own, [arg for item in batch for arg in item]))
    return calls


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, HASHES_PER_CALL)):
        yield batch


def _run(client: redis.Redis, script: Script, calls: Sequence[Call]) -> list[object]:
    """Run the calls in one pipeline; replies in order.

    redis-py's own Script object asks SCRIPT EXISTS before each pipeline, a round trip that only a restarted server
    ever needs. Here the calls that met NOSCRIPT, and so did nothing, are sent once more after a SCRIPT LOAD.
    """
    if not calls:
        return []
    with translated():
        replies = _send(client, script, calls)
        missed = [i for i, reply in enumerate(replies) if isinstance(reply, redis.exceptions.NoScriptError)]
        if missed:
            client.script_load(script.text)
            for i, reply in zip(missed, _send(client, script, [calls[i] for i in missed]), strict=True):
                replies[i] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
    return replies


def _send(client: redis.Redis, script: Script, calls: Sequence[Call]) -> list[object]:
    with client.pipeline(transaction=False) as pipeline:
        for call in calls:
            command(pipeline, "EVALSHA", script.sha, len(call.keys), *call.keys, *call.args)
        return list(pipeline.execute(raise_on_error=False))
