"""An engine beside a worker: asks for what is cached, takes its time, saves what it computed, and looks at every
byte.

Owns the order in which an engine asks, as :mod:`tiered.client.remote` and :mod:`tiered.client.saving` have it, and
the right bytes of a block.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.sim.node import LAYOUT, Node
from tests.sim.traffic import Ask, Names
from tiered.codec.frame import checksum_of
from tiered.core.lease import Lease
from tiered.errors import CapacityError, OwnershipError
from tiered.types import BlockHash, BlockId

LOAD_S = 3.0
ANSWER_S = 0.02
"""Of a request's answer, after its prompt."""


class WrongBytesError(AssertionError):
    """An engine was given bytes that are not those of the block it asked for."""


@dataclass(frozen=True, slots=True)
class EnginePace:
    """block_s: what computing a block takes. window_blocks: saved at a time."""

    block_s: float = 0.02
    window_blocks: int = 16


@dataclass(slots=True)
class Served:
    """Blocks that engines asked for and were given, over the whole cluster."""

    requests: int = 0
    asked: int = 0
    given: int = 0
    stored: int = 0
    ended: int = 0
    """Requests that a worker's end or an ended lease cut short."""


async def serve(node: Node, ask: Ask, names: Names, rng: random.Random, served: Served, pace: EnginePace) -> None:
    """One request from its lookup to the end of its save."""
    connection = node.attach()
    try:
        label = node.hot.label_of(ask.tenant)
        scope, hashes = names.scope(label), names.hashes(label, ask.blocks)
        n_given = await _read(node, ask, connection, scope, hashes, pace)
        served.requests += 1
        served.asked += len(hashes)
        served.given += n_given
        if n_given < len(hashes):
            served.stored += await _save(node, ask, connection, scope, hashes, rng, pace)
    except OwnershipError:  # its lease had ended: the client computes, and keeps nothing
        served.ended += 1
    finally:
        node.hot.detach(connection)


async def _read(
    node: Node, ask: Ask, connection: int, scope: bytes, hashes: Sequence[BlockHash], pace: EnginePace
) -> int:
    lease, *_ = await node.hot.match(
        connection=connection,
        tenant=ask.tenant,
        scope_id=scope,
        hashes=hashes,
        asked_tokens=len(hashes) * LAYOUT.block_tokens,
    )
    await node.hot.load(lease, deadline_s=LOAD_S)
    given = list(lease.pinned)
    _look(node, lease, given, hashes)
    takes_s = (len(hashes) - len(given)) * pace.block_s
    node.hot.note_prefill((len(hashes) - len(given)) * LAYOUT.block_tokens, takes_s)
    await asyncio.sleep(takes_s + ANSWER_S)
    _look(node, lease, given, hashes)  # as long as it is held, it stays what it is
    node.hot.release(lease.lease_id, connection=connection, used_tokens=len(given) * LAYOUT.block_tokens)
    return len(given)


def _look(node: Node, lease: Lease, given: Sequence[BlockId], hashes: Sequence[BlockHash]) -> None:
    if lease.lease_id not in node.hot.core.leases:
        return
    for index, block_id in enumerate(given):
        if bytes(node.memory.host_view(block_id)) != hashes[index]:
            raise WrongBytesError(f"{node.name}: slot {block_id} under lease {lease.lease_id}")


async def _save(
    node: Node,
    ask: Ask,
    connection: int,
    scope: bytes,
    hashes: Sequence[BlockHash],
    rng: random.Random,
    pace: EnginePace,
) -> int:
    lease = node.hot.open(connection=connection, tenant=ask.tenant, scope_id=scope, hashes=hashes)
    n_stored = 0
    try:
        while True:
            grant = await node.hot.allocate(lease, n_blocks_max=pace.window_blocks, wait_s=0.5)
            if not grant.block_ids:
                break
            views = [node.memory.host_view(block_id) for block_id in grant.block_ids]
            for place, view in enumerate(views):
                view[:16] = hashes[grant.first_index + place][:16]
            await asyncio.sleep(rng.uniform(0.0, 0.05))  # an engine may die here, with halves written
            for place, view in enumerate(views):
                view[16:] = hashes[grant.first_index + place][16:]
            n_stored += await node.hot.commit(lease, [checksum_of(view) for view in views])
            if grant.first_index + len(grant.block_ids) >= len(hashes):
                break
    except CapacityError:
        pass
    node.hot.release(lease.lease_id, connection=connection, used_tokens=0)
    return n_stored
