"""Clears part of the Redis tier: a prefix with all that hangs on it, or a scope. For operators, not for requests.

Both walk every block that there is, since nothing lists the children of a block or the blocks of a scope; a tenant's
own blocks are listed and are cleared without a walk (:meth:`tiered.cluster.ledger.RedisLedger.clear`). What others
write meanwhile may be missed: clear again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from tiered.cluster.connection import Client, answered, command, pipelined
from tiered.cluster.directory import parent_of
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.routing import Command
from tiered.codec.frame import HEADER_BYTES, decode_header
from tiered.errors import IntegrityError
from tiered.types import NO_HASH, BlockHash

_SCAN_COUNT: Final = 1_000


def clear_prefix(client: Client, keys: Keys, block_hash: BlockHash) -> int:
    """Forget a block and all whose prefix it ends; returns how many were stored.

    Errors: TierError when Redis does not answer; what was cleared by then stays cleared.
    """
    children: dict[BlockHash, list[BlockHash]] = defaultdict(list)
    for part in keys.every():
        for batch in _hashes(client, part, part.meta(NO_HASH)):
            records = answered(pipelined(client, [Command(("GET", part.meta(h)), part.meta(h)) for h in batch]))
            for child, record in zip(batch, records, strict=True):
                children[parent_of(record)].append(child)
    doomed, reached = [block_hash], 0
    while reached < len(doomed):
        doomed += children.get(doomed[reached], ())
        reached += 1
    return RedisLedger(client, keys).remove(doomed[::-1], why="its prefix was cleared")  # ends first


def clear_scope(client: Client, keys: Keys, scope_id: bytes) -> int:
    """Forget every block of a scope; returns how many were stored. Errors: as above."""
    ledger, cleared = RedisLedger(client, keys), 0
    for part in keys.every():
        for batch in _hashes(client, part, part.block(NO_HASH)):
            heads = [Command(("GETRANGE", part.block(h), 0, HEADER_BYTES - 1), part.block(h)) for h in batch]
            found = zip(batch, answered(pipelined(client, heads)), strict=True)
            doomed = [h for h, head in found if _scope_of(head) == scope_id]
            cleared += ledger.remove(doomed, why="its scope was cleared")
    return cleared


def _scope_of(head: bytes) -> bytes | None:
    """None for what is no value's beginning; an audit will see to it."""
    try:
        return decode_header(head).scope_id
    except IntegrityError:
        return None


def _hashes(client: Client, part: Keys, prefix: bytes) -> Iterator[Sequence[BlockHash]]:
    """Whose records, or values, one partition has; some may come twice."""
    cursor = 0
    while True:
        pattern, own = part.blocks_pattern(), part.usage()
        reply, names = command(client, "SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT, key=own)
        cursor = int(reply)
        found = {h for name in names if name.startswith(prefix) and (h := part.hash_of(name)) is not None}
        if found:
            yield sorted(found)
        if cursor == 0:
            return
