"""The only writer of block records: allocate, rename, commit, abort, pin, unpin, demote, evict.

Keeps I1 (one state a block; counts sum to the pool) and I2 (a pinned block is never evicted). Who uses a block uses
all of its prefix, so tenants join a prefix from its first block on and part from its end. Knows nothing of hashes
being looked up, of policies, or of tenants' limits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.blocks.free_list import FreeList
from tiered.blocks.record import NO_PARENT, NO_TENANT, NO_TICKET, BlockRecord
from tiered.blocks.state import TRANSITIONS, BlockEvent, BlockState
from tiered.errors import IllegalTransition
from tiered.types import NO_HASH, BlockHash, BlockId, TenantId, Ticket


class BlockTable:
    """Records of ``n_blocks`` slots. Not thread-safe: one owner."""

    def __init__(self, n_blocks: int) -> None:
        self._records = [BlockRecord() for _ in range(n_blocks)]
        self.records: Sequence[BlockRecord] = self._records
        """For reading; an attribute, as the hottest paths look records up by it."""
        self._free = FreeList(n_blocks)
        self._counts = dict.fromkeys(BlockState, 0)
        self._counts[BlockState.FREE] = n_blocks

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, block_id: BlockId) -> BlockRecord:
        """The record, for reading."""
        return self._records[block_id]

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
        record.copied = False
        if parent != NO_PARENT:
            self._count_child(parent, tenant, 1)
        return block_id

    def rename(self, block_id: BlockId, block_hash: BlockHash, *, parent: BlockId, depth: int) -> None:
        """Give a FILLING block that hung on nothing its identity, now that its content is known."""
        record = self._records[block_id]
        if record.state is not BlockState.FILLING or record.parent != NO_PARENT:
            raise IllegalTransition(f"rename of block {block_id}, {record.state.name} under parent {record.parent}")
        record.block_hash, record.parent, record.depth = block_hash, parent, depth
        if parent != NO_PARENT:
            self._count_child(parent, record.tenant, 1)

    def unname(self, block_id: BlockId, name: BlockHash) -> None:
        """Take a FILLING block's identity away, and what it hangs on; none hangs on it. The name is no content's."""
        record = self._records[block_id]
        if record.state is not BlockState.FILLING or record.children:
            raise IllegalTransition(f"unname of block {block_id}, {record.state.name}, {record.children} children")
        if record.parent != NO_PARENT:
            self._count_child(record.parent, record.tenant, -1)
        record.block_hash, record.parent, record.depth = name, NO_PARENT, 0

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
        record = self._records[block_id]
        if record.pins or record.children:
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

    def note_copied(self, block_id: BlockId, *, copied: bool = True) -> None:
        """copied: False where the tier below turned out not to have it."""
        self._records[block_id].copied = copied

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

    def join(self, block_id: BlockId, tenant: TenantId) -> None:
        """One more tenant uses a READY block; it uses the parent already, and none of the children yet."""
        record = self._records[block_id]
        if record.state is not BlockState.READY or record.used_by(tenant):
            raise IllegalTransition(f"{tenant!r} joins block {block_id}, {record.state.name} of {record.tenants}")
        if record.parent != NO_PARENT:
            self._count_use(record.parent, tenant, 1)
        if record.shares is None:
            record.shares = {record.tenant: record.children}
        record.shares[tenant] = 0

    def part(self, block_id: BlockId, tenant: TenantId) -> None:
        """One of several tenants uses the block no more."""
        record = self._records[block_id]
        shares = record.shares
        if shares is None or shares.get(tenant) != 0 or record.pins:
            raise IllegalTransition(f"{tenant!r} parts from block {block_id}, {shares} with {record.pins} pins")
        del shares[tenant]
        record.tenant = next(iter(shares))
        if len(shares) == 1:
            record.shares = None
        if record.parent != NO_PARENT:
            self._count_use(record.parent, tenant, -1)

    def may_leave(self, block_id: BlockId) -> bool:
        """READY, unpinned, a leaf and one tenant's alone: what an eviction may take."""
        record = self._records[block_id]
        return (
            record.state is BlockState.READY and record.pins == 0 and record.children == 0 and record.shares is None
        )

    def may_part(self, block_id: BlockId, tenant: TenantId) -> bool:
        """READY, unpinned, used by others too, and by this tenant as a leaf."""
        record = self._records[block_id]
        shares = record.shares
        return (
            shares is not None and shares.get(tenant) == 0 and record.state is BlockState.READY and record.pins == 0
        )

    def _count_child(self, block_id: BlockId, tenant: TenantId, by: int) -> None:
        """A child came or went that the tenant alone uses."""
        record = self._records[block_id]
        record.children += by
        if record.shares is not None or record.tenant != tenant:
            self._count_use(block_id, tenant, by)

    def _count_use(self, block_id: BlockId, tenant: TenantId, by: int) -> None:
        """A child that the tenant uses came or went."""
        record = self._records[block_id]
        if record.shares is not None and tenant in record.shares:
            record.shares[tenant] += by
        elif record.tenant != tenant or record.shares is not None:
            raise IllegalTransition(f"{tenant!r} uses a child of block {block_id} of {record.tenants}")

    def _move(self, block_id: BlockId, event: BlockEvent) -> None:
        record, counts = self._records[block_id], self._counts
        before = record.state
        after = TRANSITIONS.get((before, event))
        if after is None:
            raise IllegalTransition(f"{event.value} of block {block_id}, which is {before.name}")
        counts[before] -= 1
        counts[after] += 1
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
            self._count_child(record.parent, record.tenant, -1)
        record.block_hash, record.scope_id, record.tenant = NO_HASH, b"", NO_TENANT
        record.parent, record.checksum = NO_PARENT, None
        self._free.give(block_id)
