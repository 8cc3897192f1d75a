"""The only writer of block records: allocate, commit, abort, pin, unpin, demote, evict.

Keeps I1 (one state a block; counts sum to the pool) and I2 (a pinned block is never evicted). Knows nothing of
hashes being looked up, of policies, or of tenants' limits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.blocks.free_list import FreeList
from tiered.blocks.record import NO_HASH, NO_PARENT, NO_TENANT, NO_TICKET, BlockRecord
from tiered.blocks.state import TRANSITIONS, BlockEvent, BlockState
from tiered.errors import IllegalTransition
from tiered.types import BlockHash, BlockId, TenantId, Ticket


class BlockTable:
    """Records of ``n_blocks`` slots. Not thread-safe: one owner."""

    def __init__(self, n_blocks: int) -> None:
        self._records = [BlockRecord() for _ in range(n_blocks)]
        self._free = FreeList(n_blocks)
        self._counts = dict.fromkeys(BlockState, 0)
        self._counts[BlockState.FREE] = n_blocks

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, block_id: BlockId) -> BlockRecord:
        """The record, for reading."""
        return self._records[block_id]

    @property
    def records(self) -> Sequence[BlockRecord]:
        return self._records

    @property
    def free_list(self) -> FreeList:
        return self._free

    def count(self, state: BlockState) -> int:
        return self._counts[state]

    def allocate(
        self, block_hash: BlockHash, *, scope_id: bytes, tenant: TenantId, parent: BlockId, depth: int
    ) -> BlockId | None:
        """A free slot, now FILLING under this identity; None when no slot is free.

        The parent gains a resident child and so stays until this block is gone.
        """
        block_id = self._free.take()
        if block_id is None:
            return None
        record = self._records[block_id]
        self._move(block_id, BlockEvent.ALLOCATE)
        record.block_hash, record.scope_id, record.tenant = block_hash, scope_id, tenant
        record.parent, record.depth = parent, depth
        record.children = record.pins = record.hits = 0
        record.checksum = None
        if parent != NO_PARENT:
            self._records[parent].children += 1
        return block_id

    def commit(self, block_id: BlockId, checksum: bytes | None) -> None:
        """FILLING -> READY: the bytes are whole and will not change until the block leaves."""
        self._move(block_id, BlockEvent.COMMIT)
        self._records[block_id].checksum = checksum

    def abort(self, block_id: BlockId) -> None:
        """FILLING -> FREE: what was being written is dropped."""
        self._forbid_in_use(block_id, "abort")
        self._move(block_id, BlockEvent.ABORT)
        self._forget(block_id)

    def evict(self, block_id: BlockId) -> None:
        """READY -> FREE, without a copy elsewhere. The caller has taken it out of the index."""
        self._forbid_in_use(block_id, "evict")
        self._move(block_id, BlockEvent.EVICT)
        self._forget(block_id)

    def start_leaving(self, block_id: BlockId, ticket: Ticket) -> None:
        """READY -> LEAVING: its bytes are being copied down; a hit still brings it back."""
        self._forbid_in_use(block_id, "demote")
        self._move(block_id, BlockEvent.DEMOTE)
        self._records[block_id].ticket = ticket

    def hit_while_leaving(self, block_id: BlockId) -> None:
        """LEAVING -> READY: wanted again; the copy under way ends as a stale ticket."""
        self._move(block_id, BlockEvent.HIT)
        self._records[block_id].ticket = NO_TICKET

    def finish_leaving(self, block_id: BlockId, ticket: Ticket, *, copied: bool) -> bool:
        """LEAVING -> FREE when copied, -> READY when not. False, and no change, for a stale ticket."""
        record = self._records[block_id]
        if record.state is not BlockState.LEAVING or record.ticket != ticket:
            return False
        self._move(block_id, BlockEvent.COPIED if copied else BlockEvent.COPY_FAILED)
        record.ticket = NO_TICKET
        if copied:
            self._forget(block_id)
        return True

    def pin(self, block_id: BlockId) -> None:
        record = self._records[block_id]
        if record.state is BlockState.FREE:
            raise IllegalTransition(f"pin of block {block_id}, which is FREE")
        record.pins += 1

    def unpin(self, block_id: BlockId) -> None:
        record = self._records[block_id]
        if record.pins < 1:
            raise IllegalTransition(f"unpin of block {block_id}, which has no pin")
        record.pins -= 1

    def may_leave(self, block_id: BlockId) -> bool:
        """READY, unpinned and a leaf: what an eviction may take."""
        record = self._records[block_id]
        return record.state is BlockState.READY and record.pins == 0 and record.children == 0

    def _move(self, block_id: BlockId, event: BlockEvent) -> None:
        record = self._records[block_id]
        after = TRANSITIONS.get((record.state, event))
        if after is None:
            raise IllegalTransition(f"{event.value} of block {block_id}, which is {record.state.name}")
        self._counts[record.state] -= 1
        self._counts[after] += 1
        record.state = after

    def _forbid_in_use(self, block_id: BlockId, what: str) -> None:
        record = self._records[block_id]
        if record.pins or record.children:
            raise IllegalTransition(
                f"{what} of block {block_id} with {record.pins} pins and {record.children} resident children"
            )

    def _forget(self, block_id: BlockId) -> None:
        record = self._records[block_id]
        if record.parent != NO_PARENT:
            self._records[record.parent].children -= 1
        record.block_hash, record.scope_id, record.tenant = NO_HASH, b"", NO_TENANT
        record.parent, record.checksum = NO_PARENT, None
        self._free.give(block_id)
