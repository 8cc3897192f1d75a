"""allocate: slots for the blocks of a prefix that are not here yet, in chain order.

A slot is FREE already, or somebody gives one up: the tenant itself when it stands at its limit, else whoever
fairness names. Where room is still being made the answer is "soon", and the host asks again.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tiered.blocks.record import NO_PARENT
from tiered.blocks.state import BlockState
from tiered.core.adrift import set_adrift
from tiered.core.core import CacheCore
from tiered.core.demote import make_room, shrink
from tiered.core.lease import Lease
from tiered.core.leaving import leaving_blocks
from tiered.core.sharing import join_prefix
from tiered.core.telling import tell_refused
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
    DRAINING = "draining"
    """The node is on its way out."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Slots for hashes[first_index : first_index + len(block_ids)]; all before are resident.

    gave: how many blocks of whom have left for this request so far, its own tenant among them.
    """

    first_index: int
    block_ids: tuple[BlockId, ...]
    shortfall: Shortfall
    gave: Mapping[TenantId, int] = field(default_factory=dict)


def answer(tenant: TenantId, shortfall: Shortfall, gave: Mapping[TenantId, int]) -> str:
    """One phrase for people: granted, and at whose cost, or why not."""
    if shortfall is not Shortfall.NONE:
        return f"refused: {shortfall.value}"
    others = sorted(giver for giver in gave if giver != tenant)
    if others:
        return f"granted after reclaiming from {', '.join(others)}"
    return "granted after evicting own" if gave else "granted"


def allocate(core: CacheCore, lease: Lease, *, n_blocks_max: int, force: bool = False) -> Grant:
    """Slots for an engine to fill, from the first block of the lease's chain that is neither here nor being filled.

    force: let blocks leave without a copy rather than answer SOON.
    """
    run = core.resident_run(lease.hashes, lease.scope_id)
    first = len(run)
    parent = run[-1] if run else NO_PARENT
    mine = set(lease.filling)
    while first < len(lease.hashes):
        other = core.filling.get(lease.hashes[first])
        if other is None:
            break
        if other not in mine:
            if set_adrift(core, other):  # nobody waits for it, and the engine has what it would bring
                break
            _tell(core, lease.hashes[first], lease.tenant, 1, Shortfall.BUSY, first)
            return Grant(first, (), Shortfall.BUSY, dict(lease.gave))
        parent, first = other, first + 1
    want = min(n_blocks_max, len(lease.hashes) - first)
    if want <= 0:
        return Grant(first, (), Shortfall.NONE, dict(lease.gave))
    block_ids, shortfall = take_slots(
        core,
        lease.hashes[first : first + want],
        scope_id=lease.scope_id,
        tenant=lease.tenant,
        parent=parent,
        gave=lease.gave,
        force=force,
    )
    lease.filling.extend(block_ids)
    return Grant(first, tuple(block_ids), shortfall, dict(lease.gave))


def take_slots(
    core: CacheCore,
    hashes: Sequence[BlockHash],
    *,
    scope_id: bytes,
    tenant: TenantId,
    parent: BlockId,
    gave: Counter[TenantId],
    force: bool = False,
) -> tuple[list[BlockId], Shortfall]:
    """FILLING slots for the first of ``hashes``, each the parent of the next; fewer than all with the reason.

    parent: what the first hangs on. How deep that is the table knows; the chain that is asked for may begin anywhere.
    gave: counts the blocks that have left for them, by tenant.
    """
    if parent == NO_PARENT:
        return _take_slots(core, hashes, scope_id, tenant, parent, 0, gave, force)
    depth = core.table[parent].depth + 1
    if core.table[parent].state is BlockState.LEAVING:
        core.come_back(parent)
    core.table.pin(parent)  # making room must not take the block that the first slot hangs on
    try:
        # Who uses a block uses its prefix, so it pays its part of a prefix that others brought here.
        if not core.table[parent].used_by(tenant) and not join_prefix(core, parent, tenant):
            _tell(core, hashes[0], tenant, len(hashes), Shortfall.QUOTA, depth)
            return [], Shortfall.QUOTA
        return _take_slots(core, hashes, scope_id, tenant, parent, depth, gave, force)
    finally:
        core.table.unpin(parent)


def _take_slots(
    core: CacheCore,
    hashes: Sequence[BlockHash],
    scope_id: bytes,
    tenant: TenantId,
    parent: BlockId,
    depth: int,
    gave: Counter[TenantId],
    force: bool,
) -> tuple[list[BlockId], Shortfall]:
    taken: list[BlockId] = []
    link, n_slots = parent, 0
    for block_hash in hashes:
        if block_hash in core.filling or core.index.find(block_hash) is not None:
            _tell(core, block_hash, tenant, 1, Shortfall.BUSY, depth + len(taken))
            return taken, Shortfall.BUSY
        if not n_slots:
            shortfall = ensure_slot(core, tenant, lacking=len(hashes) - len(taken), gave=gave, force=force)
            if shortfall is not Shortfall.NONE:
                # Who gets a part asks again for the rest: it is counted then.
                if not taken and shortfall in (Shortfall.QUOTA, Shortfall.FULL):
                    count_refused(core, tenant, len(hashes), shortfall)
                    _tell(core, block_hash, tenant, len(hashes), shortfall, depth)
                return taken, shortfall
            n_slots = _slots_at_hand(core, tenant)
        n_slots -= 1
        block_id = core.become_filling(
            block_hash, scope_id=scope_id, tenant=tenant, parent=link, depth=depth + len(taken)
        )
        assert block_id is not None  # ensure_slot found one
        taken.append(block_id)
        link = block_id
    return taken, Shortfall.NONE


def count_refused(core: CacheCore, tenant: TenantId, n_blocks: int, shortfall: Shortfall) -> None:
    counters = core.count(tenant)
    counters.refused += n_blocks
    if shortfall is Shortfall.QUOTA:
        counters.refused_by_limit += n_blocks


def _tell(
    core: CacheCore, block_hash: BlockHash, tenant: TenantId, n_blocks: int, shortfall: Shortfall, depth: int
) -> None:
    tell_refused(core, block_hash, tenant, n_blocks=n_blocks, why=shortfall.value, depth=depth)


def ensure_slot(
    core: CacheCore, tenant: TenantId, *, lacking: int, gave: Counter[TenantId], force: bool
) -> Shortfall:
    """NONE when a slot is free for the tenant now; otherwise why not, with room being made where it can be.

    What is on its way out is part of the room: asking again meanwhile makes no more. Only with ``force`` at least
    one more block leaves, since then it has to leave now.
    """
    if core.draining:
        return Shortfall.DRAINING
    block_bytes = core.options.block_bytes
    more = int(force)
    if core.ledger.excess_bytes(tenant, asked_bytes=block_bytes):
        if core.ledger.policy(tenant).over_quota == "refuse":
            core.count(tenant).wanted += lacking
            return Shortfall.QUOTA
        excess = core.ledger.excess_bytes(tenant, asked_bytes=lacking * block_bytes)
        n_bytes = max(more, excess - leaving_blocks(core)[tenant] * block_bytes)
        n_gave = gave[tenant]
        shrink(core, tenant, n_bytes=n_bytes, copy=not force, gave=gave)
        core.count(tenant).wanted += gave[tenant] - n_gave
        if core.ledger.excess_bytes(tenant, asked_bytes=block_bytes):
            if _copies_of(core, tenant):
                return Shortfall.SOON
            core.count(tenant).wanted += lacking
            return Shortfall.QUOTA
    if core.blocks_in(BlockState.FREE):
        return Shortfall.NONE
    make_room(core, asking=tenant, n_blocks=max(more, lacking - len(core.leaving)), copy=not force, gave=gave)
    if core.blocks_in(BlockState.FREE):
        return Shortfall.NONE
    return Shortfall.SOON if core.leaving or core.recalled else Shortfall.FULL


def _slots_at_hand(core: CacheCore, tenant: TenantId) -> int:
    """How many free slots the tenant may take one after the other before room has to be asked for again."""
    n_free = core.blocks_in(BlockState.FREE)
    limit = core.ledger.limit_bytes(tenant)
    if limit is None:
        return n_free
    return min(n_free, (limit - core.ledger.used_bytes(tenant)) // core.options.block_bytes)


def _copies_of(core: CacheCore, tenant: TenantId) -> bool:
    """Whether copies are under way whose end may let blocks of the tenant go."""
    block_ids = (*core.leaving.values(), *core.recalled.values())
    return any(core.table[block_id].tenant == tenant for block_id in block_ids)
