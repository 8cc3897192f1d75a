"""allocate: slots for the blocks of a prefix that are not here yet, in chain order.

A slot is FREE already, or somebody gives one up: the tenant itself when it stands at its limit, else whoever
fairness names. Where room is still being made the answer is "soon", and the host asks again.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tiered.blocks.record import NO_PARENT
from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.core.demote import leaving_blocks, make_room, shrink
from tiered.core.lease import Lease
from tiered.types import BlockHash, BlockId, TenantId


class Shortfall(enum.StrEnum):
    """Why fewer slots were granted than asked for."""

    NONE = "none"
    SOON = "soon"
    """Blocks are leaving; ask again."""
    BUSY = "busy"
    """Somebody else is writing the next block of this very prefix, or has it under another parent."""
    QUOTA = "quota"
    """The tenant is at its limit and has nothing that may leave, or its policy is to refuse."""
    FULL = "full"
    """Nothing in the pool may leave: all of it is pinned or promised to others."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Slots for hashes[first_index : first_index + len(block_ids)]; all before are resident."""

    first_index: int
    block_ids: tuple[BlockId, ...]
    shortfall: Shortfall


def allocate(core: CacheCore, lease: Lease, *, n_blocks_max: int, force: bool = False) -> Grant:
    """Slots for an engine to fill, from the first block of the lease's chain that is neither here nor being filled.

    force: let blocks leave without a copy rather than answer SOON.
    """
    run = core.index.match(lease.hashes)
    first = len(run)
    parent = run[-1] if run else NO_PARENT
    mine = set(lease.filling)
    while first < len(lease.hashes):
        other = core.filling.get(lease.hashes[first])
        if other is None:
            break
        if other not in mine:
            return Grant(first, (), Shortfall.BUSY)
        parent, first = other, first + 1
    want = min(n_blocks_max, len(lease.hashes) - first)
    if want <= 0:
        return Grant(first, (), Shortfall.NONE)
    block_ids, shortfall = take_slots(
        core,
        lease.hashes[first : first + want],
        scope_id=lease.scope_id,
        tenant=lease.tenant,
        parent=parent,
        depth=first,
        force=force,
    )
    lease.filling.extend(block_ids)
    return Grant(first, tuple(block_ids), shortfall)


def take_slots(
    core: CacheCore,
    hashes: Sequence[BlockHash],
    *,
    scope_id: bytes,
    tenant: TenantId,
    parent: BlockId,
    depth: int,
    force: bool = False,
) -> tuple[list[BlockId], Shortfall]:
    """FILLING slots for the first of ``hashes``, each the parent of the next; fewer than all with the reason."""
    if parent != NO_PARENT:
        if core.table[parent].state is BlockState.LEAVING:
            core.come_back(parent)
        core.table.pin(parent)  # making room must not take the block that the first slot hangs on
    try:
        return _take_slots(core, hashes, scope_id, tenant, parent, depth, force)
    finally:
        if parent != NO_PARENT:
            core.table.unpin(parent)


def _take_slots(
    core: CacheCore,
    hashes: Sequence[BlockHash],
    scope_id: bytes,
    tenant: TenantId,
    parent: BlockId,
    depth: int,
    force: bool,
) -> tuple[list[BlockId], Shortfall]:
    taken: list[BlockId] = []
    link = parent
    for block_hash in hashes:
        if block_hash in core.filling or core.index.find(block_hash) is not None:
            return taken, Shortfall.BUSY
        shortfall = _ensure_slot(core, tenant, lacking=len(hashes) - len(taken), force=force)
        if shortfall is not Shortfall.NONE:
            # Who gets a part asks again for the rest: it is counted then.
            if not taken and shortfall in (Shortfall.QUOTA, Shortfall.FULL):
                core.count(tenant).refused += len(hashes)
            return taken, shortfall
        block_id = core.become_filling(
            block_hash, scope_id=scope_id, tenant=tenant, parent=link, depth=depth + len(taken)
        )
        assert block_id is not None  # _ensure_slot found one
        taken.append(block_id)
        link = block_id
    return taken, Shortfall.NONE


def _ensure_slot(core: CacheCore, tenant: TenantId, *, lacking: int, force: bool) -> Shortfall:
    """NONE when a slot is free for the tenant now; otherwise why not, with room being made where it can be.

    What is on its way out is part of the room: asking again meanwhile makes no more. Only with ``force`` at least
    one more block leaves, since then it has to leave now.
    """
    block_bytes = core.options.block_bytes
    more = int(force)
    if core.ledger.excess_bytes(tenant, asked_bytes=block_bytes):
        if core.ledger.policy(tenant).over_quota == "refuse":
            return Shortfall.QUOTA
        excess = core.ledger.excess_bytes(tenant, asked_bytes=lacking * block_bytes)
        n_blocks = max(more, -(-excess // block_bytes) - leaving_blocks(core)[tenant])
        shrink(core, tenant, n_blocks=n_blocks, copy=not force)
        if core.ledger.excess_bytes(tenant, asked_bytes=block_bytes):
            return Shortfall.SOON if _copies_of(core, tenant) else Shortfall.QUOTA
    if core.blocks_in(BlockState.FREE):
        return Shortfall.NONE
    make_room(core, asking=tenant, n_blocks=max(more, lacking - len(core.leaving)), copy=not force)
    if core.blocks_in(BlockState.FREE):
        return Shortfall.NONE
    return Shortfall.SOON if core.leaving or core.recalled else Shortfall.FULL


def _copies_of(core: CacheCore, tenant: TenantId) -> bool:
    """Whether copies are under way whose end may let blocks of the tenant go."""
    block_ids = (*core.leaving.values(), *core.recalled.values())
    return any(core.table[block_id].tenant == tenant for block_id in block_ids)
