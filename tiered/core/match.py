"""match: the longest gap-free run of a chain that is hot, pinned under a lease.

The pins end with release, with the connection, or by themselves after ``match_lease_s``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tiered.blocks.record import NO_PARENT, NO_TENANT
from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.core.lease import Lease
from tiered.core.requests import looked_up
from tiered.core.sharing import join_prefixes
from tiered.jobs import Origin
from tiered.types import NO_HINTS, BlockHash, BlockId, Hints, LeaseId, Source, TenantId


def match(
    core: CacheCore,
    hashes: Sequence[BlockHash],
    *,
    connection: int,
    tenant: TenantId,
    scope_id: bytes,
    asked_tokens: int,
    now: float,
    hints: Hints = NO_HINTS,
) -> Lease:
    """Pin what is hot and open the request's lease. Cost: about half a microsecond a block."""
    core.now = max(core.now, now)
    lease = open_lease(
        core,
        hashes,
        connection=connection,
        tenant=tenant,
        scope_id=scope_id,
        asked_tokens=asked_tokens,
        expires_at=now + core.options.match_lease_s,
    )
    looked_up(core, lease, now=now, hints=hints)
    run = core.resident_run(hashes, scope_id)
    core.count_uses(tenant, len(run))
    promise = core.promises.get(tenant)
    if promise is not None:
        promise.asked(hashes, n_hits=len(run))
    pin_run(core, lease, run, [Source.HOT] * len(run))
    return lease


def open_lease(
    core: CacheCore,
    hashes: Sequence[BlockHash],
    *,
    connection: int,
    tenant: TenantId,
    scope_id: bytes,
    asked_tokens: int = 0,
    expires_at: float = math.inf,
) -> Lease:
    """A lease that holds nothing yet. A save's never ends by time: its engine may be in the middle of a copy."""
    lease = Lease(
        lease_id=LeaseId(core.next_id()),
        connection=connection,
        tenant=tenant,
        scope_id=scope_id,
        hashes=hashes,
        asked_tokens=asked_tokens,
        expires_at=expires_at,
    )
    core.leases[lease.lease_id] = lease
    return lease


def pin_run(
    core: CacheCore, lease: Lease, run: Sequence[BlockId], sources: Sequence[Source], *, arrived: bool = False
) -> None:
    """Pin further blocks of the lease's prefix, each with where it was found. Its tenant uses them from now on.

    arrived: they became resident for this very use, so their policies know of it.

    Touches from the deepest up, so that by recency a parent stays younger than its children.
    """
    records, leaving = core.table.records, BlockState.LEAVING
    tenant, policies, joins = lease.tenant, core.policies, False
    n_used, n_promised = core.n_used, core.n_promised
    for block_id in reversed(run):
        record = records[block_id]
        if record.state is leaving:
            core.come_back(block_id)
        record.pins += 1
        record.hits += 1
        record.used_at, record.promised_at = n_used, n_promised
        user = tenant
        if record.tenant != tenant and not record.used_by(tenant):
            if tenant != NO_TENANT:
                joins = True
                continue
            user = record.tenant  # a peer's use counts for one who pays
        if arrived:
            policies[user].on_touch(block_id)
        else:
            policies[user].on_hit(block_id)
    lease.pinned.extend(run)
    lease.sources.extend(sources)
    if joins:
        join_prefixes(core, run, tenant)


def touch_prefix(core: CacheCore, block_id: BlockId, tenant: TenantId) -> None:
    """Tell the tenant's policy that its use of a block and all before it goes on, from the deepest up.

    It counts once. Blocks that came in several runs are in order run by run only, and younger than what they hang
    on; after this a parent is younger than its children again, so that finding a victim needs no search.
    """
    on_touch, records = core.policy_of(tenant).on_touch, core.table.records
    while block_id != NO_PARENT:
        record = records[block_id]
        if record.tenant == tenant or record.used_by(tenant):
            on_touch(block_id)
        record.used_at, record.promised_at = core.n_used, core.n_promised
        block_id = record.parent


def note_origins(lease: Lease, origins: Sequence[tuple[Origin, ...]]) -> tuple[int, int]:
    """Record where the blocks after the hot ones may come from.

    origins: for each hash after the pinned ones, nearest first; the run ends at the first empty one. Returns how
    many blocks of the run would come from peers and from Redis first.
    """
    n_peer = n_redis = 0
    first = len(lease.pinned)
    for offset, choices in enumerate(origins):
        if not choices:
            break
        lease.origins[first + offset] = choices
        if choices[0].source is Source.PEER:
            n_peer += 1
        else:
            n_redis += 1
    return n_peer, n_redis
