"""One block's metadata. Only ``blocks.table`` writes it."""

from __future__ import annotations

from dataclasses import dataclass

from tiered.blocks.state import BlockState
from tiered.types import NO_HASH, BlockHash, BlockId, TenantId, Ticket

NO_PARENT = BlockId(-1)
NO_TENANT = TenantId("")
NO_TICKET = Ticket(0)


@dataclass(slots=True)
class BlockRecord:
    """Metadata of one slot; the fields below ``state`` mean something only while it is not FREE.

    depth:    blocks before this one in its prefix. children: resident blocks whose parent is this one.
    pins:     uses that forbid eviction. hits: matches since it was committed.
    checksum: of the block's bytes, as its writer computed it; None when the writer could not.
    ticket:   the demotion under way while LEAVING.
    used_at:  how many uses of the pool's blocks there had been when it was last used. promised_at: how many of those
              by tenants that have a reservation.
    copied:   a copy was taken for the tier below since it became READY, and nobody found that it is not there.
    shares:   where several tenants use the block: each of them, and how many resident children of the block it uses
              too. None while ``tenant`` alone does; it then uses all of the children.
    """

    state: BlockState = BlockState.FREE
    block_hash: BlockHash = NO_HASH
    scope_id: bytes = b""
    tenant: TenantId = NO_TENANT
    parent: BlockId = NO_PARENT
    depth: int = 0
    children: int = 0
    pins: int = 0
    hits: int = 0
    checksum: bytes | None = None
    ticket: Ticket = NO_TICKET
    used_at: int = 0
    promised_at: int = 0
    copied: bool = False
    shares: dict[TenantId, int] | None = None

    @property
    def tenants(self) -> tuple[TenantId, ...]:
        """Who is charged for it, in equal parts."""
        return (self.tenant,) if self.shares is None else tuple(self.shares)

    def used_by(self, tenant: TenantId) -> bool:
        return self.tenant == tenant or (self.shares is not None and tenant in self.shares)
