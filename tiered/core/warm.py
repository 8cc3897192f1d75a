"""warm: bring up blocks that nobody has asked for yet, into free slots alone; nobody gives anything up for them."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.core.lease import Lease
from tiered.core.match import note_origins, open_lease, pin_run
from tiered.core.promote import FETCH_BLOCKS_MAX
from tiered.jobs import Origin
from tiered.types import BlockHash, Source, TenantId


def spare_slots(core: CacheCore) -> int:
    """Free ones beyond those that are kept free for whoever comes."""
    return core.blocks_in(BlockState.FREE) - core.options.free_target_blocks


def wanted(core: CacheCore, hashes: Sequence[BlockHash], *, tenant: TenantId) -> Sequence[BlockHash]:
    """The next blocks of a prefix that are not here and may be, by what is free and by the tenant's limit; one job's
    worth at most, so that an engine's loads never wait for more than one."""
    first = len(core.index.match(hashes))
    n_blocks = min(FETCH_BLOCKS_MAX, len(hashes) - first, spare_slots(core))
    block_bytes = core.options.block_bytes
    excess = core.ledger.excess_bytes(tenant, asked_bytes=max(0, n_blocks) * block_bytes)
    n_blocks -= -(-excess // block_bytes)
    return hashes[first : first + max(0, n_blocks)]


def open_warm(
    core: CacheCore,
    hashes: Sequence[BlockHash],
    below: Sequence[BlockHash],
    origins: Sequence[tuple[Origin, ...]],
    *,
    tenant: TenantId,
    scope_id: bytes,
    connection: int,
    expires_at: float,
) -> Lease | None:
    """A lease ready to load ``below``, which :func:`wanted` named before its origins were looked up.

    None when things have changed meanwhile, so that the load would take what is not free, or has no use.
    """
    if list(wanted(core, hashes, tenant=tenant)[: len(below)]) != list(below) or not origins or not origins[0]:
        return None
    run = core.index.match(hashes)
    lease = open_lease(
        core,
        hashes[: len(run) + len(below)],
        connection=connection,
        tenant=tenant,
        scope_id=scope_id,
        expires_at=expires_at,
    )
    pin_run(core, lease, run, [Source.HOT] * len(run), arrived=True)
    note_origins(lease, origins)
    return lease
