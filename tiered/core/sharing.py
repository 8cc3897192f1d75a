"""sharing: tenants that may read each other's blocks use them together, and pay for them in equal parts.

A tenant uses a block once it has asked for it, until its own policy lets the block go; then the others take its part
over, and with the last one the block leaves. Who uses a block uses its whole prefix. Nobody's bytes ever pass its
limit by this: who has no room for its part reads without using, as a guest, while the others keep the block; and
nobody parts from a block while another has no room to take the part over.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.blocks.record import NO_PARENT, BlockRecord
from tiered.core.core import CacheCore
from tiered.core.demote import shrink
from tiered.tenancy.ledger import parts
from tiered.types import BlockId, TenantId


def join(core: CacheCore, run: Sequence[BlockId], tenant: TenantId) -> bool:
    """Make the tenant a user of pinned READY blocks, each the parent of the next; False where its limit ends it.

    Those of its own blocks that may leave for it do; where they leave by way of a copy, it joins the next time.
    """
    records = core.table.records
    joined: list[BlockId] = []
    for block_id in run:
        record = records[block_id]
        if record.used_by(tenant):
            continue
        if not _has_room(core, record, tenant):
            break
        before = record.tenants
        core.table.join(block_id, tenant)
        core.ledger.recharge(before, record.tenants)
        joined.append(block_id)
    for block_id in reversed(joined):  # the parent is the youngest
        core.tell_policy(block_id, records[block_id], tenant)
    return not run or records[run[-1]].used_by(tenant)


def join_prefix(core: CacheCore, block_id: BlockId, tenant: TenantId) -> bool:
    """As :func:`join`, for a block and all before it."""
    records, run = core.table.records, [block_id]
    while not records[run[-1]].used_by(tenant) and records[run[-1]].parent != NO_PARENT:
        run.append(records[run[-1]].parent)
    run.reverse()  # from the deepest one it uses already, which it must not part from to make room
    for pinned in run:
        core.table.pin(pinned)
    try:
        return join(core, run, tenant)
    finally:
        for pinned in run:
            core.table.unpin(pinned)


def join_prefixes(core: CacheCore, run: Sequence[BlockId], tenant: TenantId) -> None:
    """As :func:`join_prefix` for pinned blocks, most of which hang on the one before."""
    records = core.table.records
    for index, block_id in enumerate(run):
        if index + 1 == len(run) or records[run[index + 1]].parent != block_id:
            join_prefix(core, block_id, tenant)


def _has_room(core: CacheCore, record: BlockRecord, tenant: TenantId) -> bool:
    """Whether the tenant's part of the block fits below its limit, with what may leave for it gone."""
    *_, part = parts(core.options.block_bytes, len(record.tenants) + 1)
    excess = core.ledger.excess_bytes(tenant, asked_bytes=part)
    if excess and core.ledger.policy(tenant).over_quota == "evict_own":
        shrink(core, tenant, n_bytes=excess)
        excess = core.ledger.excess_bytes(tenant, asked_bytes=part)
    if excess:
        core.count(tenant).wanted += 1
    return not excess
