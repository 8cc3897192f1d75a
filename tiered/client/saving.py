"""The save loop that both clients share: slots, fill, checksum, commit, until all is stored or room runs out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from tiered.client.port import Fill, Saved
from tiered.codec.frame import checksum_of
from tiered.core.allocate import Grant, Shortfall, answer
from tiered.types import BlockId, TenantId

if TYPE_CHECKING:
    from tiered.pool.pool import BlockPool

WINDOW_BLOCKS: Final = 64
"""Slots of one round: while they are filled, room is made for the next."""


class SaveSession(Protocol):
    """One save under way."""

    def allocate(self, *, n_blocks_max: int, wait_s: float) -> Grant: ...

    def commit(self, checksums: Sequence[bytes | None]) -> None: ...


def run_save(
    session: SaveSession, pool: BlockPool, *, tenant: TenantId, n_blocks: int, fill: Fill, wait_s: float
) -> Saved:
    """Store blocks [.., n_blocks) of the session's chain, in order, so that what is stored is always a prefix.

    Waits for room at most ``wait_s`` in all; after that blocks leave without a copy.
    """
    ends_at = time.monotonic() + wait_s
    stored: list[bytes | None] = []
    first_index = None
    while True:
        grant = session.allocate(n_blocks_max=WINDOW_BLOCKS, wait_s=max(0.0, ends_at - time.monotonic()))
        if first_index is None:
            first_index = grant.first_index
        if not grant.block_ids:
            break
        fill(pool, grant.block_ids, grant.first_index)
        pool.settle()
        checksums = [block_checksum(pool, block_id) for block_id in grant.block_ids]
        session.commit(checksums)
        stored.extend(checksums)
        if grant.first_index + len(grant.block_ids) >= n_blocks:
            break
    shortfall = Shortfall.NONE if grant.block_ids else grant.shortfall
    return Saved(
        n_stored=len(stored),
        first_index=first_index,
        reason="" if shortfall is Shortfall.NONE else shortfall.value,
        gave=grant.gave,
        answer=answer(tenant, shortfall, grant.gave),
        checksums=stored,
    )


def block_checksum(pool: BlockPool, block_id: BlockId) -> bytes | None:
    """Of the block's bytes as they are now; None for a pool that the host cannot read."""
    return checksum_of(pool.host_view(block_id)) if pool.device == "cpu" else None


def verified_blocks(pool: BlockPool, block_ids: Sequence[BlockId], checksums: Sequence[bytes | None]) -> int:
    """How many blocks, from the first on, still hold the bytes that were committed.

    A block without a checksum is taken as it is: its writer's memory could not be read from the host.
    """
    if pool.device != "cpu":
        return len(block_ids)
    for n_good, (block_id, checksum) in enumerate(zip(block_ids, checksums, strict=True)):
        if checksum is not None and checksum_of(pool.host_view(block_id)) != checksum:
            return n_good
    return len(block_ids)
