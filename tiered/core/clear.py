"""clear: let blocks go because somebody asked for it, without a copy; what is in use goes when it is no more."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tiered.blocks.record import NO_PARENT, BlockRecord
from tiered.core.core import CacheCore
from tiered.types import BlockHash, BlockId, TenantId


def blocks_of_tenant(core: CacheCore, tenant: TenantId) -> set[BlockHash]:
    return _where(core, lambda record: record.used_by(tenant))


def blocks_of_scope(core: CacheCore, scope_id: bytes) -> set[BlockHash]:
    return _where(core, lambda record: record.scope_id == scope_id)


def blocks_of_prefix(core: CacheCore, block_hash: BlockHash) -> set[BlockHash]:
    """A block and all that hangs on it."""
    doomed: set[BlockId] = set()
    for block_id, record in sorted(core.resident(), key=lambda item: item[1].depth):
        if record.block_hash == block_hash or (record.parent != NO_PARENT and record.parent in doomed):
            doomed.add(block_id)
    return {core.table[block_id].block_hash for block_id in doomed}


def clear(core: CacheCore, hashes: Collection[BlockHash], *, tenant: TenantId | None = None) -> set[BlockHash]:
    """Let these go, the deepest first; those that are left are in use, leaving by way of a copy, or have a block in
    use hanging on them.

    tenant: it alone lets go; of a block that others use too, they keep their part.
    """
    ids = [block_id for block_hash in hashes if (block_id := core.index.find(block_hash)) is not None]
    left: set[BlockHash] = set()
    for block_id in sorted(ids, key=lambda each: core.table[each].depth, reverse=True):
        record = core.table[block_id]
        block_hash = record.block_hash
        for user in record.tenants if tenant is None else (tenant,):
            if core.table.may_part(block_id, user):
                before = record.tenants
                core.policies[user].on_remove(block_id)
                core.table.part(block_id, user)
                core.ledger.recharge(before, record.tenants)
        if core.table.may_leave(block_id) and (tenant is None or record.tenant == tenant):
            core.forget(block_id)
            if core.why is not None:
                core.why.note("cleared", block_hash, record.tenant)
        elif tenant is None or record.used_by(tenant):
            left.add(block_hash)
    return left


def _where(core: CacheCore, is_wanted: Callable[[BlockRecord], bool]) -> set[BlockHash]:
    return {record.block_hash for _, record in core.resident() if is_wanted(record)}
