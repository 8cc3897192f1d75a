"""lend: pin whichever of some hashes are here, so that a peer can be sent their bytes."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.blocks.record import NO_TENANT
from tiered.core.core import CacheCore
from tiered.core.lease import Lease
from tiered.core.match import open_lease, pin_run
from tiered.types import BlockHash, Source


def lend(
    core: CacheCore, hashes: Sequence[BlockHash], *, scope_id: bytes, connection: int, now: float, lease_s: float
) -> tuple[Lease, list[int]]:
    """A lease that pins what is here, and the indices of those hashes in order of ``lease.pinned``.

    Not a prefix: a peer asks for the pieces it lacks. The holder decides what it still holds (I7).
    """
    lease = open_lease(core, (), connection=connection, tenant=NO_TENANT, scope_id=scope_id, expires_at=now + lease_s)
    held = []
    for index, block_hash in enumerate(hashes):
        block_id = core.index.find(block_hash)
        if block_id is not None and core.table[block_id].scope_id == scope_id:
            held.append((index, block_id))
    pin_run(core, lease, [block_id for _, block_id in held], [Source.HOT] * len(held))
    return lease, [index for index, _ in held]
