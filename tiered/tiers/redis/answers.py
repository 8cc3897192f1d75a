"""What becomes of a block that is put, and how that follows from what the ledger says of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from tiered.cluster.ledger import ReserveAnswer


class PutAnswer(enum.Enum):
    STORED = "stored"
    STORED_AFTER_EVICTING_OWN = "stored_after_evicting_own"
    STORED_AFTER_RECLAIMING = "stored_after_reclaiming"
    ALREADY_THERE = "already_there"
    """Or another writer is storing the same block right now."""
    REFUSED_QUOTA = "refused_quota"
    REFUSED_FULL = "refused_full"
    FAILED = "failed"
    """Redis did not answer, or the reservation ended before the bytes were there."""

    @property
    def stored(self) -> bool:
        """Whether this very put has brought the bytes there."""
        return self in STORED.values()


REFUSALS: Final[Mapping[ReserveAnswer, PutAnswer]] = {
    ReserveAnswer.UNANSWERED: PutAnswer.FAILED,
    ReserveAnswer.ALREADY_THERE: PutAnswer.ALREADY_THERE,
    ReserveAnswer.PENDING_ELSEWHERE: PutAnswer.ALREADY_THERE,
    ReserveAnswer.REFUSED_QUOTA: PutAnswer.REFUSED_QUOTA,
    ReserveAnswer.REFUSED_FULL: PutAnswer.REFUSED_FULL,
}
STORED: Final[Mapping[ReserveAnswer, PutAnswer]] = {
    ReserveAnswer.RESERVED: PutAnswer.STORED,
    ReserveAnswer.RESERVED_AFTER_EVICTING_OWN: PutAnswer.STORED_AFTER_EVICTING_OWN,
    ReserveAnswer.RESERVED_AFTER_RECLAIMING: PutAnswer.STORED_AFTER_RECLAIMING,
}

TOLD: Final[Mapping[PutAnswer, tuple[str, str]]] = {
    PutAnswer.STORED: ("stored", "there was room"),
    PutAnswer.STORED_AFTER_EVICTING_OWN: ("stored", "after evicting own"),
    PutAnswer.STORED_AFTER_RECLAIMING: ("stored", "after reclaiming"),
    PutAnswer.ALREADY_THERE: ("there", "already"),
    PutAnswer.REFUSED_QUOTA: ("refused", "quota"),
    PutAnswer.REFUSED_FULL: ("refused", "full"),
    PutAnswer.FAILED: ("failed", "Redis did not answer in time"),
}
"""What happened, and how, in the why-log's words."""
