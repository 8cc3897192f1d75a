"""One load under way: blocks of one prefix on their way up into this pool."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiered.jobs import Origin
from tiered.types import BlockId, LeaseId, Source, Ticket


@dataclass(slots=True)
class LoadOp:
    """State of one load; its moves are in ``core.promote``.

    next_index:  the first block that is not committed yet; everything before it is READY and pinned by the lease.
    slots:       FILLING blocks of this load for indices from next_index on, without a gap.
    origins:     per index the places left to ask, nearest first.
    asked:       per index the origin that was asked last.
    outstanding: jobs under way and the indices each will answer.
    arrived:     checksum of what came and verified.
    detached:    nobody waits for it any longer.
    """

    op_id: int
    lease_id: LeaseId
    next_index: int
    origins: dict[int, list[Origin]]
    slots: dict[int, BlockId] = field(default_factory=dict)
    asked: dict[int, Source] = field(default_factory=dict)
    outstanding: dict[Ticket, list[int]] = field(default_factory=dict)
    arrived: dict[int, bytes] = field(default_factory=dict)
    detached: bool = False
    done: bool = False

    @property
    def slots_end(self) -> int:
        return self.next_index + len(self.slots)
