"""second: look, a slice at a time, at the blocks whose tenants ask for two copies, and say which are due a second.

Where else a block is comes from the caller, who asked the directory. A copy that is on its way down is seen by the
caller's next look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tiered.blocks.record import BlockRecord
from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.types import BlockHash, BlockId, TenantId

SLICE_BLOCKS_MAX: Final = 4_096
"""Looked up once a second: 16 questions of the directory."""

SLICE_SLOTS_MAX: Final = 16_384
"""Some milliseconds of the loop, where few of the slots ask for two copies."""


@dataclass(frozen=True, slots=True)
class Slice:
    """ends_turn: there are no further slots; begins: where to look again if this look comes to nothing."""

    hashes: Sequence[BlockHash]
    begins: int
    ends_turn: bool


def next_slice(core: CacheCore) -> Slice:
    """The next blocks that ask for two copies, in the order of their slots."""
    first = core.seconds.cursor
    last = min(len(core.table), first + SLICE_SLOTS_MAX)
    records, ready, hashes = core.table.records, BlockState.READY, list[BlockHash]()
    asked: dict[TenantId, bool] = {}
    slot = first
    while slot < last and len(hashes) < SLICE_BLOCKS_MAX:
        record = records[slot]
        slot += 1
        if record.state is not ready:
            continue
        tenant = record.tenant
        if tenant not in asked:
            asked[tenant] = core.two_copies.asked_by(tenant)
        if asked[tenant] or (record.shares is not None and any(map(core.two_copies.asked_by, record.shares))):
            hashes.append(record.block_hash)
    core.seconds.cursor = slot
    return Slice(hashes, first, ends_turn=slot >= len(core.table))


def asking(core: CacheCore, record: BlockRecord) -> Iterable[TenantId]:
    """Those of its tenants that ask for two copies."""
    return (tenant for tenant in record.tenants if core.two_copies.asked_by(tenant))


def due(core: CacheCore, singles: Sequence[BlockHash], *, now: float) -> list[BlockHash]:
    """Of blocks that are in no other place: those for which a second is to be made now, the shallowest first."""
    wanted: list[tuple[int, BlockHash]] = []
    for block_hash in singles:
        record = _resident(core, block_hash)
        tenant = None if record is None else next(iter(asking(core, record)), None)
        if record is not None and tenant is not None and core.seconds.may_try(tenant, now):
            wanted.append((record.depth, block_hash))
    return [block_hash for _, block_hash in sorted(wanted)]


def were_copied(core: CacheCore, hashes: Iterable[BlockHash]) -> set[BlockHash]:
    """Those of them of which a copy was taken before, so that it was refused or has gone."""
    return {h for h in hashes if (record := _resident(core, h)) is not None and record.copied}


def note_tried(
    core: CacheCore,
    asked: Sequence[BlockHash],
    *,
    missing: Collection[BlockHash],
    again: Collection[BlockHash],
    now: float,
) -> None:
    """Seconds were asked for; missing: those that are in no other place all the same. again: see were_copied."""
    made: Counter[TenantId] = Counter()
    refused: Counter[TenantId] = Counter()
    repeated: Counter[TenantId] = Counter()
    for block_hash in asked:
        record = _resident(core, block_hash)
        tenant = None if record is None else next(iter(asking(core, record)), None)
        if tenant is not None:
            (refused if block_hash in missing else made)[tenant] += 1
            repeated[tenant] += block_hash in again
    for tenant in made.keys() | refused.keys():
        core.seconds.tried(tenant, n_made=made[tenant], n_refused=refused[tenant], n_again=repeated[tenant], now=now)


def note_place(
    core: CacheCore, block_hash: BlockHash, *, stored_bytes: int | None, is_single: bool, counts_here: bool
) -> None:
    """Where a block of the slice was found; see SecondCopies.found."""
    block_id = core.index.find(block_hash)
    if block_id is None:
        return
    core.table.note_copied(block_id, copied=stored_bytes is not None)
    core.seconds.found(
        asking(core, core.table[block_id]),
        stored_bytes=stored_bytes,
        is_single=is_single,
        counts_here=counts_here,
    )


def _resident(core: CacheCore, block_hash: BlockHash) -> BlockRecord | None:
    block_id: BlockId | None = core.index.find(block_hash)
    return None if block_id is None else core.table[block_id]
