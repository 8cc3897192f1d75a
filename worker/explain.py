"""Answers why a block is, or is not, here: what the ring remembers of it, and what its record says now.

Knows the bounds of an answer. It runs on the loop and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.errors import ProtocolError
from tiered.hashing.chain import split_hashes
from tiered.types import BlockHash, BlockHere
from tiered.wire.messages import EXPLAINED_BLOCKS_MAX, EXPLAINED_EVENTS_MAX, Explain, Explained, Recent
from worker.why import WhyRing


def explain(core: CacheCore | None, ring: WhyRing | None, request: Explain | Recent) -> Explained:
    """core: None before the first engine; ring: None where nothing is remembered.

    Errors: ProtocolError for a request of no sense, or of more than one answer may hold.
    """
    if isinstance(request, Recent):
        return _recent(ring, request)
    try:
        hashes = split_hashes(request.hashes)
    except ValueError as error:
        raise ProtocolError(str(error)) from error
    if len(hashes) > EXPLAINED_BLOCKS_MAX:
        raise ProtocolError(f"{len(hashes)} blocks to explain, at most {EXPLAINED_BLOCKS_MAX}")
    return Explained(
        events=() if ring is None else ring.explain(hashes, n_max=EXPLAINED_EVENTS_MAX),
        last_seq=0 if ring is None else ring.last_seq,
        lost=0 if ring is None else ring.lost,
        blocks=() if core is None else _blocks(core, hashes),
    )


def _recent(ring: WhyRing | None, request: Recent) -> Explained:
    if not 1 <= request.n_max <= EXPLAINED_EVENTS_MAX or request.after_seq < 0:
        raise ProtocolError(f"{request.n_max} events after {request.after_seq} cannot be told")
    if ring is None:
        return Explained((), 0, 0)
    events, last_seq = ring.recent(
        after_seq=request.after_seq, n_max=request.n_max, tenant=request.tenant, what=frozenset(request.what)
    )
    return Explained(events, last_seq, ring.lost)


def _blocks(core: CacheCore, hashes: Sequence[BlockHash]) -> tuple[BlockHere, ...]:
    """Those that are here, being written among them."""
    found = []
    for block_hash in dict.fromkeys(hashes):
        block_id = core.index.find(block_hash)
        if block_id is None:
            block_id = core.filling.get(block_hash)
        if block_id is None:
            continue
        record = core.table[block_id]
        is_whole = record.state is not BlockState.FILLING
        found.append(
            BlockHere(
                block_hash=block_hash,
                state=record.state.name.lower(),
                tenants=record.tenants,
                hits=record.hits,
                pins=record.pins,
                depth=record.depth,
                idle=core.n_used - record.used_at if is_whole else 0,
            )
        )
    return tuple(found)
