"""telling: the numbers of this moment, for the why-log of a core that has one. Decides and changes nothing.

Each function is called before the change it tells of, while the block's record still says what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from tiered.blocks.record import BlockRecord
from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.core.why import NO_LIMIT, Evicted, Terms
from tiered.types import NO_HASH, BlockHash, BlockId, Source, TenantId

ROOM: Final = "room"
OWN_LIMIT: Final = "own limit"
LIMIT_LOWERED: Final = "limit lowered"
AHEAD_OF_NEED: Final = "ahead of need"
LARGER_PART: Final = "larger part"


def terms_of(core: CacheCore, giver: TenantId, asking: TenantId, *, why: str) -> Terms | None:
    """On what terms blocks of ``giver`` leave for ``asking`` now; None where nobody wants to know."""
    if core.why is None:
        return None
    core.why.make_room()
    ledger = core.ledger
    own, other = ledger.policy(giver), ledger.policy(asking) if asking else None
    limit, for_limit = ledger.limit_bytes(giver), ledger.limit_bytes(asking) if asking else None
    return Terms(
        tenant=giver,
        policy=core.options.policy_name,
        why=why,
        for_tenant=asking,
        limit=NO_LIMIT if limit is None else limit,
        reserved=ledger.reserved_bytes(giver),
        weight=own.weight,
        for_used=ledger.used_bytes(asking),
        for_limit=NO_LIMIT if for_limit is None else for_limit,
        for_reserved=ledger.reserved_bytes(asking) if asking else 0,
        for_weight=1.0 if other is None else other.weight,
    )


def tell_evicted(core: CacheCore, record: BlockRecord, terms: Terms, rank: int, copy: str) -> None:
    """Once for each block of a pool that is overwritten for ever: it costs what it must and no more."""
    if core.why is None:
        return
    core.why.push(
        Evicted(
            record.block_hash,
            terms,
            rank,
            record.depth,
            record.hits,
            core.n_used - record.used_at,
            core.ledger.used_bytes(record.tenant),
            copy,
        )
    )


def tell_parted(core: CacheCore, block_id: BlockId, tenant: TenantId, terms: Terms) -> None:
    """Others still use the block."""
    if core.why is None:
        return
    record, limit = core.table.records[block_id], core.ledger.limit_bytes(tenant)
    core.why.note(
        "parted",
        record.block_hash,
        tenant,
        why=terms.why if tenant == terms.tenant else LARGER_PART,
        for_tenant=terms.for_tenant,
        policy=terms.policy,
        users_left=len(record.tenants) - 1,
        used=core.ledger.used_bytes(tenant),
        limit=NO_LIMIT if limit is None else limit,
        reserved=core.ledger.reserved_bytes(tenant),
    )


def tell_stored(core: CacheCore, block_ids: Sequence[BlockId]) -> None:
    """An engine's blocks are whole, each the parent of the next."""
    if core.why is None or not block_ids:
        return
    records = core.table.records
    first = records[block_ids[0]]
    core.why.note_run("stored", [records[b].block_hash for b in block_ids], first.tenant, depth=first.depth)


def tell_fetched(core: CacheCore, block_ids: Sequence[BlockId], sources: Sequence[Source]) -> None:
    """Blocks came up from below, each the parent of the next."""
    if core.why is None:
        return
    records = core.table.records
    for source, group in groupby(zip(sources, block_ids, strict=True), key=lambda pair: pair[0]):
        ids = [block_id for _, block_id in group]
        first = records[ids[0]]
        hashes = [records[b].block_hash for b in ids]
        core.why.note_run("fetched", hashes, first.tenant, depth=first.depth, source=source.value)


def tell_missed(core: CacheCore, block_hash: BlockHash, tenant: TenantId, source: Source, *, behind: int) -> None:
    """The directory had promised a block, and nobody had it. behind: blocks that came after it, and in vain."""
    if core.why is not None:
        core.why.note("missed", block_hash, tenant, why="promised and absent", source=source.value, behind=behind)


def tell_refused(
    core: CacheCore, block_hash: BlockHash, tenant: TenantId, *, n_blocks: int, why: str, depth: int = 0
) -> None:
    """No slots for blocks of one prefix, of which this would be the first; NO_HASH for a sequence's open ones."""
    if core.why is None:
        return
    ledger, limit = core.ledger, core.ledger.limit_bytes(tenant)
    core.why.note(
        "refused",
        block_hash if len(block_hash) == 32 else NO_HASH,
        tenant,
        n_blocks=n_blocks,
        why=why,
        depth=depth,
        used=ledger.used_bytes(tenant),
        limit=NO_LIMIT if limit is None else limit,
        reserved=ledger.reserved_bytes(tenant),
        free_blocks=core.blocks_in(BlockState.FREE),
        pool_blocks=core.n_blocks,
    )


def tell_copy_ended(core: CacheCore, block_id: BlockId, *, copied: bool, stays: bool) -> None:
    """demoted: it leaves, a copy is on its way down. copied: so too, and it stays. uncopied: there was no copy."""
    if core.why is None:
        return
    record = core.table.records[block_id]
    what = ("copied" if stays else "demoted") if copied else "uncopied"
    if copied:
        core.why.note(what, record.block_hash, record.tenant, hits=record.hits)
    else:
        core.why.note(what, record.block_hash, record.tenant, why="queue full", stays=int(stays))
