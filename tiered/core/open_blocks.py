"""open_blocks: how the blocks of sequences come, become shared, and go.

An open block is FILLING under a name that no hash can be, hangs on nothing, and is pinned once by each sequence and
each copy that holds it. The verbs are in ``core.sequences``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.blocks.record import NO_PARENT
from tiered.blocks.state import BlockState
from tiered.core.allocate import Shortfall, count_refused, ensure_slot
from tiered.core.core import CacheCore
from tiered.core.sharing import join_prefix
from tiered.core.telling import tell_refused, tell_stored
from tiered.sequence.sequence import TokenSequence
from tiered.types import NO_HASH, BlockHash, BlockId, TenantId


def take_open(
    core: CacheCore, sequence: TokenSequence, n_blocks: int, end_token: int, *, force: bool
) -> list[BlockId] | Shortfall:
    """Open blocks that hang on nothing, each pinned once; all of them, or why not."""
    if n_blocks > 0 and -(-end_token // sequence.block_tokens) > core.n_blocks:
        return Shortfall.FULL  # before anything leaves in vain
    taken: list[BlockId] = []
    while len(taken) < n_blocks:
        shortfall = ensure_slot(core, sequence.tenant, lacking=n_blocks - len(taken), gave=sequence.gave, force=force)
        if shortfall is not Shortfall.NONE:
            if shortfall is not Shortfall.SOON:
                count_refused(core, sequence.tenant, n_blocks, shortfall)
                tell_refused(core, NO_HASH, sequence.tenant, n_blocks=n_blocks, why=shortfall.value)
            for block_id in reversed(taken):
                give_back(core, block_id)
            return shortfall
        fresh = core.become_filling(
            _no_hash(core), scope_id=sequence.scope_id, tenant=sequence.tenant, parent=NO_PARENT, depth=0
        )
        assert fresh is not None  # ensure_slot found one
        core.table.pin(fresh)
        taken.append(fresh)
    return taken


def share_whole(core: CacheCore, sequence: TokenSequence, n_tokens: int) -> int:
    """Make whole blocks READY, or take what others made so meanwhile; up to one that somebody else is writing.

    n_tokens: those written ones whose blocks may be shared.

    A block also stays private where the tenant only reads the prefix as a guest (``core.sharing``): what it cannot
    pay for, nothing of its own can hang on.
    """
    n_before = sequence.n_ready
    fresh: list[int] = []
    for index in range(n_before, n_tokens // sequence.block_tokens):
        block_hash, own = sequence.hashes[index], sequence.block_ids[index]
        resident = core.index.find(block_hash)
        if resident is not None and resident != own:
            pin(core, resident)
            tell_use(core, sequence.tenant, [resident])
            sequence.block_ids[index] = resident
            give_back(core, own)
        elif resident is None:
            parent = sequence.block_ids[index - 1] if index else NO_PARENT
            if block_hash in core.filling or not _may_hang_on(core, parent, sequence.tenant):
                break
            core.name_filling(own, block_hash, parent=parent, depth=index)
            fresh.append(index)
        sequence.n_ready = index + 1
    for index in reversed(fresh):  # the parent is the youngest
        core.become_ready(sequence.block_ids[index], sequence.checksums.get(index))
    tell_stored(core, [sequence.block_ids[index] for index in fresh])
    for index in range(n_before, sequence.n_ready):
        sequence.checksums.pop(index, None)
    sequence.has_grown = sequence.has_grown or bool(fresh)
    return sequence.n_ready - n_before


def pin(core: CacheCore, block_id: BlockId) -> None:
    if core.table[block_id].state is BlockState.LEAVING:
        core.come_back(block_id)
    core.table.pin(block_id)


def tell_use(core: CacheCore, tenant: TenantId, run: Sequence[BlockId]) -> None:
    """The tenant uses further READY blocks of one prefix; from the deepest up, so that parents stay younger."""
    records, policy = core.table.records, core.policy_of(tenant)
    core.count_uses(tenant, len(run))
    for block_id in reversed(run):
        record = records[block_id]
        record.hits += 1
        record.used_at, record.promised_at = core.n_used, core.n_promised
        if record.used_by(tenant):
            policy.on_hit(block_id)
    if run:
        join_prefix(core, run[-1], tenant)


def give_back(core: CacheCore, block_id: BlockId) -> None:
    """One sequence, or one copy, holds the block no more; what nobody can ever find is free."""
    core.table.unpin(block_id)
    record = core.table[block_id]
    if record.state is BlockState.FILLING and not record.pins:
        core.drop_filling(block_id)


def _no_hash(core: CacheCore) -> BlockHash:
    """A name for an open block: shorter than a hash, so that nothing can ever match it."""
    return BlockHash(b"open" + core.next_id().to_bytes(8, "little"))


def _may_hang_on(core: CacheCore, parent: BlockId, tenant: TenantId) -> bool:
    if parent == NO_PARENT or core.table[parent].state is BlockState.FILLING:  # named a moment ago by us
        return True
    return core.table[parent].used_by(tenant) or join_prefix(core, parent, tenant)
