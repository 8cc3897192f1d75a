"""giving: which block leaves so that there is room, and who lets go of it.

First *which tenant gives* (fairness between tenants, and what of a reservation may be lent), then *which of its
blocks* (its policy), leaf first, pins respected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.core.leaving import leaving_blocks, let_go, may_begin
from tiered.core.telling import LARGER_PART, terms_of
from tiered.tenancy.fairness import giving_order
from tiered.tenancy.ledger import parts
from tiered.types import BlockId, TenantId

Victim: TypeAlias = tuple[BlockId, TenantId, Sequence[TenantId], int]
"""A block, the tenant that gives it, where it is shared, who lets go of it together, and how many its policy proposed
before it."""


def choose(core: CacheCore, asking: TenantId, *, copy: bool) -> Victim | None:
    """The block that leaves so that ``asking`` can have one; see :mod:`tiered.tenancy.promise` for what is lent.

    Among what reservations do not protect the oldest leaves. Who has no reservation gives by its standing alone, but
    not before what others have reserved and left idle for longer.
    """
    first = first_of(core, _givers(core, asking), copy=copy)
    if not core.promises or core.ledger.is_alone(asking):
        return first
    lent = _oldest_lent(core)
    if lent is None or first is None:
        return first or lent
    if first[1] in core.promises:
        return lent
    return min(first, lent, key=lambda victim: core.table[victim[0]].used_at)


def _givers(core: CacheCore, asking: TenantId) -> Iterable[TenantId]:
    if core.ledger.is_alone(asking):  # nobody else is here to compare with
        return (asking,)
    block_bytes = core.options.block_bytes
    leaving = leaving_blocks(core)
    room = core.blocks_in(BlockState.FREE) + leaving.total()
    return giving_order(
        core.ledger,
        asking=asking,
        asked_bytes=(room + 1) * block_bytes,
        block_bytes=block_bytes,
        leaving_bytes={tenant: n * block_bytes for tenant, n in leaving.items()},
    )


def _oldest_lent(core: CacheCore) -> Victim | None:
    """Of the blocks that each tenant with a reservation would give first, the oldest that is not protected.

    Looks and changes nothing: most of those tenants will not give.
    """
    records, too_idle = core.table.records, core.leaving_age.too_idle
    best: Victim | None = None
    for tenant, promise in core.promises.items():
        victim = first_of(core, (tenant,), copy=None)
        if victim is None:
            continue
        record = records[victim[0]]
        is_idle = core.n_promised - record.promised_at >= too_idle
        if promise.protects(record.block_hash, is_idle=is_idle):
            continue
        if best is None or record.used_at < records[best[0]].used_at:
            best = victim
    return best


def first_of(core: CacheCore, tenants: Iterable[TenantId], *, copy: bool | None) -> Victim | None:
    """Who gives, and the best of its blocks that may leave or that it may part from.

    copy: whether blocks that others have to give for that leave by way of a copy; None: none does, this is a look.
    """
    table = core.table
    for tenant in tenants:
        policy = core.policies.get(tenant)
        if policy is None:
            continue
        for rank, block_id in enumerate(policy.victims()):
            if table.may_leave(block_id):
                return block_id, tenant, (), rank
            if table.may_part(block_id, tenant):
                parting = who_parts(core, block_id, tenant, copy=copy)
                if parting:
                    return block_id, tenant, parting, rank
    return None


def who_parts(core: CacheCore, block_id: BlockId, tenant: TenantId, *, copy: bool | None) -> Sequence[TenantId]:
    """Who parts from a shared block if the tenant does; nobody while that would press another above its limit.

    Another user that has no room for its larger part begins to give for it what it alone uses; with nothing to give
    it parts as well, unless more of its blocks hang on this one.
    """
    record, block_bytes = core.table[block_id], core.options.block_bytes
    paid = dict(zip(record.tenants, parts(block_bytes, len(record.tenants)), strict=True))
    parting = [tenant]
    while left := [user for user in record.tenants if user not in parting]:
        larger = dict(zip(left, parts(block_bytes, len(left)), strict=True))
        lacking = [u for u in left if core.ledger.excess_bytes(u, asked_bytes=larger[u] - paid[u])]
        if not lacking:
            break
        for user in lacking:
            if _gives_own(core, user, copy=copy) or not core.table.may_part(block_id, user):
                return ()
        parting.extend(lacking)
    return parting


def _gives_own(core: CacheCore, tenant: TenantId, *, copy: bool | None) -> bool:
    """Whether a block that it alone uses leaves now, or is on its way out, or could leave, where this is a look."""
    if leaving_blocks(core)[tenant]:
        return True
    victim = next((block_id for block_id in core.policies[tenant].victims() if core.table.may_leave(block_id)), None)
    if victim is None or (copy is not None and not may_begin(core, copy)):
        return False
    if copy is not None:
        let_go(core, victim, terms_of(core, tenant, tenant, why=LARGER_PART), copy=copy)
    return True
