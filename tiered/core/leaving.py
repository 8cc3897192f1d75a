"""leaving: a block that may leave does, by way of a copy where it is worth one, and sends that down."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tiered.blocks.record import NO_PARENT
from tiered.core.core import CacheCore
from tiered.core.telling import tell_evicted
from tiered.core.why import Terms
from tiered.jobs import DemoteJob
from tiered.types import NO_HASH, BlockId, TenantId, Ticket

_NONE_LEAVING: Final[Counter[TenantId]] = Counter()

REUSED_HITS: Final = 1
"""Matches after its commit that make a block "reused": written once, wanted again."""

BEGUN: Final = "begun"
"""Of a copy; any other word says why there is none."""


def leaving_blocks(core: CacheCore) -> Counter[TenantId]:
    """Per tenant the blocks that are on their way out; they are charged until their copy is made."""
    if not core.leaving:
        return _NONE_LEAVING
    return Counter(core.table[block_id].tenant for block_id in core.leaving.values())


def may_begin(core: CacheCore, copy: bool) -> bool:
    """Whether one more block may leave now: of copies only so many are under way at once."""
    return not copy or len(core.leaving) + len(core.recalled) < core.options.leaving_max


def let_go(core: CacheCore, victim: BlockId, terms: Terms | None, *, rank: int = 0, copy: bool = True) -> None:
    """Evict a block that may leave, by way of a copy when it is worth one. terms, rank: for who asks why."""
    outlook = _copy_of(core, victim)
    if outlook == BEGUN and not copy:
        outlook = "no time"
    if terms is not None:
        tell_evicted(core, core.table.records[victim], terms, rank, outlook)
    if outlook != BEGUN:
        core.forget(victim)
        return
    ticket = Ticket(core.next_id())
    core.start_leaving(victim, ticket)
    send_down(core, victim, ticket)


def send_down(core: CacheCore, block_id: BlockId, ticket: Ticket) -> None:
    """Have a copy of the block made, and put into the tier below at the cost of one of its tenants: of the first that
    asks for two copies, if any does."""
    record = core.table[block_id]
    tenant = next((user for user in record.tenants if core.two_copies.asked_by(user)), record.tenant)
    policy = core.ledger.policy(tenant)
    core.jobs.append(
        DemoteJob(
            ticket=ticket,
            block_id=block_id,
            block_hash=record.block_hash,
            scope_id=record.scope_id,
            tenant=tenant,
            depth=record.depth,
            checksum=record.checksum,
            parent=NO_HASH if record.parent == NO_PARENT else core.table[record.parent].block_hash,
            codec=policy.redis_codec,
            copies=policy.copies,
        )
    )


def _copy_of(core: CacheCore, victim: BlockId) -> str:
    """BEGUN where the block is worth a copy, else why not."""
    options = core.options
    if not options.lower_tier:
        return "no tier below"
    record = core.table[victim]
    if core.two_copies.asked_by(record.tenant):  # whatever else is done with what leaves
        return "made before" if record.copied else BEGUN
    if options.demote == "evicted":
        return BEGUN
    if options.demote == "never":
        return "never"
    if options.demote == "always":
        return "made before" if record.copied else BEGUN
    return BEGUN if record.hits >= REUSED_HITS else "not reused"
