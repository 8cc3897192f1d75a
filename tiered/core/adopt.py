"""adopt: blocks of an earlier life become this one's, each only once its bytes have been verified.

Only for a core that holds nothing yet. The newest prefixes come first, so that a limit, a smaller pool or too little
time costs the oldest. Who fetches the bytes, and how they are checked, is the caller's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from tiered.blocks.record import NO_PARENT, BlockRecord
from tiered.core.core import CacheCore
from tiered.core.sharing import join
from tiered.journal.rows import ROOT, JournalRow
from tiered.tenancy.ledger import parts
from tiered.types import BlockHash, BlockId, Source, TenantId

BATCH_BLOCKS: Final = 64
"""Verified together, by as many threads as the caller likes."""

Bring: TypeAlias = Callable[[Sequence[tuple[JournalRow, BlockId]]], Sequence[bool]]
"""Put the bytes of rows into slots; for each whether they are there and verify."""


@dataclass(slots=True)
class Adoption:
    """left: blocks that were not adopted, by reason: corrupt, orphan (its parent was not), limit, room, time."""

    adopted: list[JournalRow] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)


def adopt(core: CacheCore, rows: Iterable[JournalRow], bring: Bring, *, in_time: Callable[[], bool]) -> Adoption:
    """Adopt the rows that say where their bytes are. ``Adoption.adopted`` has the slots they have now.

    in_time: False once no further batch may begin.
    """
    if core.index or core.filling:
        raise ValueError("only a core that holds nothing can adopt")
    return _Adopter(core, bring).run(newest_first(row for row in rows if row.slot is not None), in_time)


def newest_first(rows: Iterable[JournalRow]) -> list[JournalRow]:
    """In order of last use, each after its parent: whoever uses a block uses its prefix, whatever was recorded."""
    deepest_first = sorted(rows, key=lambda row: -row.depth)
    used: dict[BlockHash, int] = {}
    for row in deepest_first:
        mine = max(row.touched, used.get(row.block_hash, 0))
        used[row.block_hash] = mine
        used[row.parent] = max(mine, used.get(row.parent, 0))
    return sorted(deepest_first, key=lambda row: (-used[row.block_hash], row.depth))


def row_of(core: CacheCore, block_id: BlockId, *, with_slot: bool) -> JournalRow:
    """A resident block as the journal keeps it. with_slot: its bytes can be found again by the next life."""
    record = core.table[block_id]
    has_bytes = with_slot and record.checksum is not None
    return JournalRow(
        block_hash=record.block_hash,
        parent=ROOT if record.parent == NO_PARENT else core.table[record.parent].block_hash,
        scope_id=record.scope_id,
        tenants=record.tenants,
        depth=record.depth,
        slot=int(block_id) if has_bytes else None,
        checksum=record.checksum if has_bytes else None,
    )


class _Adopter:
    def __init__(self, core: CacheCore, bring: Bring) -> None:
        self._core = core
        self._bring = bring
        self._batch: list[tuple[JournalRow, BlockId]] = []
        self._slots_used: set[int] = set()
        self._rows: dict[BlockId, JournalRow] = {}
        self._ids: dict[BlockHash, BlockId] = {}
        """Both of what is adopted or in the batch."""
        self._done = Adoption()

    def run(self, rows: Sequence[JournalRow], in_time: Callable[[], bool]) -> Adoption:
        for index, row in enumerate(rows):
            if len(self._batch) == BATCH_BLOCKS:
                self._settle()
            if not self._batch and not in_time():
                self._done.left["time"] += len(rows) - index
                break
            reason = self._take(row)
            if reason:
                self._done.left[reason] += 1
        self._settle()
        self._tell_policies()
        return self._done

    def _take(self, row: JournalRow) -> str:
        """A FILLING slot for the row, in the batch; else the reason why not."""
        core = self._core
        if row.slot in self._slots_used or row.block_hash in self._ids:
            return "corrupt"
        parent = NO_PARENT
        if row.parent != ROOT:
            parent = self._ids.get(row.parent, NO_PARENT)
            if parent == NO_PARENT or core.table[parent].depth != row.depth - 1:
                return "orphan"
            if self._batch and not _users(core.table[parent], row):
                self._settle()  # once the parent is ready, its other tenants join it
                parent = self._ids.get(row.parent, NO_PARENT)
                if parent == NO_PARENT:
                    return "orphan"
        tenants = row.tenants if parent == NO_PARENT else _users(core.table[parent], row)
        tenant = next((t for t in tenants if _fits(core, t, core.options.block_bytes)), None)
        if tenant is None:
            return "limit"
        block_id = core.become_filling(
            row.block_hash, scope_id=row.scope_id, tenant=tenant, parent=parent, depth=row.depth
        )
        if block_id is None:
            return "room"
        self._ids[row.block_hash] = block_id
        self._rows[block_id] = row
        self._batch.append((row, block_id))
        return ""

    def _settle(self) -> None:
        """What verifies becomes READY; what does not is given back, with what hangs on it."""
        core, batch, self._batch = self._core, self._batch, []
        if not batch:
            return
        good = dict(zip((row.block_hash for row, _ in batch), self._bring(batch), strict=True))
        for row, _ in batch:  # parents stand before their children
            if good[row.block_hash] and not good.get(row.parent, True):
                good[row.block_hash] = False
                self._done.left["orphan"] += 1
            elif not good[row.block_hash]:
                self._done.left["corrupt"] += 1
        for row, block_id in reversed(batch):
            if not good[row.block_hash]:
                del self._ids[row.block_hash], self._rows[block_id]
                core.drop_filling(block_id)
        for row, block_id in batch:
            if good[row.block_hash]:
                core.become_ready(block_id, row.checksum, origin=Source.HOT)
                self._join(row, block_id)
                core.table[block_id].hits = row.hits
                if core.why is not None:
                    tenant = core.table[block_id].tenant
                    core.why.note("adopted", row.block_hash, tenant, depth=row.depth, hits=row.hits)
                assert row.slot is not None  # else there was nothing to bring
                self._slots_used.add(row.slot)

    def _join(self, row: JournalRow, block_id: BlockId) -> None:
        record = self._core.table[block_id]
        for tenant in row.tenants:
            if record.used_by(tenant):
                continue
            if record.parent != NO_PARENT and not self._core.table[record.parent].used_by(tenant):
                continue
            *_, part = parts(self._core.options.block_bytes, len(record.tenants) + 1)
            if _fits(self._core, tenant, part):
                join(self._core, [block_id], tenant)

    def _tell_policies(self) -> None:
        """Anew, in the order in which eviction should take them: the oldest first, the deepest first of a prefix.

        What was used again in an earlier life counts as used once more than when it came, so that a policy that asks
        for proof does not take it for a newcomer.
        """
        core = self._core
        core.policies.clear()
        for block_id in reversed(self._rows):
            record = core.table[block_id]
            for tenant in record.tenants:
                core.tell_policy(block_id, record, tenant)
                if record.hits:
                    core.policy_of(tenant).on_hit(block_id)
        self._done.adopted = [
            replace(row, slot=int(block_id), tenants=core.table[block_id].tenants)
            for block_id, row in self._rows.items()
        ]


def _users(record: BlockRecord, row: JournalRow) -> list[TenantId]:
    """Those of the row's tenants that use its parent: nobody uses a block without its prefix."""
    return [tenant for tenant in row.tenants if record.used_by(tenant)]


def _fits(core: CacheCore, tenant: TenantId, nbytes: int) -> bool:
    return not core.ledger.excess_bytes(tenant, asked_bytes=nbytes)
