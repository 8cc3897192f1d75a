"""leaving: a block that may leave does, by way of a copy where it is worth one, and sends that down."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tiered.blocks.record import NO_PARENT
from tiered.core.core import CacheCore
from tiered.jobs import DemoteJob
from tiered.types import NO_HASH, BlockId, TenantId, Ticket

_NONE_LEAVING: Final[Counter[TenantId]] = Counter()

REUSED_HITS: Final = 1
"""Matches after its commit that make a block "reused": written once, wanted again."""


def leaving_blocks(core: CacheCore) -> Counter[TenantId]:
    """Per tenant the blocks that are on their way out; they are charged until their copy is made."""
    if not core.leaving:
        return _NONE_LEAVING
    return Counter(core.table[block_id].tenant for block_id in core.leaving.values())


def may_begin(core: CacheCore, copy: bool) -> bool:
    """Whether one more block may leave now: of copies only so many are under way at once."""
    return not copy or len(core.leaving) + len(core.recalled) < core.options.leaving_max


def let_go(core: CacheCore, victim: BlockId, *, copy: bool = True) -> None:
    """Evict a block that may leave, by way of a copy when it is worth one."""
    if not (copy and _worth_a_copy(core, victim)):
        core.forget(victim)
        return
    ticket = Ticket(core.next_id())
    core.start_leaving(victim, ticket)
    send_down(core, victim, ticket)


def send_down(core: CacheCore, block_id: BlockId, ticket: Ticket) -> None:
    """Have a copy of the block made, and put into the tier below."""
    record = core.table[block_id]
    core.jobs.append(
        DemoteJob(
            ticket=ticket,
            block_id=block_id,
            block_hash=record.block_hash,
            scope_id=record.scope_id,
            tenant=record.tenant,
            depth=record.depth,
            checksum=record.checksum,
            parent=NO_HASH if record.parent == NO_PARENT else core.table[record.parent].block_hash,
            codec=core.ledger.policy(record.tenant).redis_codec,
        )
    )


def _worth_a_copy(core: CacheCore, victim: BlockId) -> bool:
    options = core.options
    record = core.table[victim]
    if not options.lower_tier or options.demote == "never":
        return False
    if options.demote == "always":
        return not record.copied
    return options.demote == "evicted" or record.hits >= REUSED_HITS
