"""The life of a block as a transition table.

FREE --allocate--> FILLING --commit--> READY --demote--> LEAVING --copied--> FREE
                      |                 | ^                |
                      +--abort--> FREE  | +------ hit -----+   (also: copy failed)
                                        +--evict--> FREE
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class BlockState(enum.IntEnum):
    __hash__ = int.__hash__  # Enum's own is Python code, and every move looks the table below up

    FREE = 0
    FILLING = 1
    READY = 2
    LEAVING = 3


class BlockEvent(enum.Enum):
    __hash__ = object.__hash__

    ALLOCATE = "allocate"
    COMMIT = "commit"
    ABORT = "abort"
    DEMOTE = "demote"
    EVICT = "evict"
    HIT = "hit"
    COPIED = "copied"
    COPY_FAILED = "copy_failed"


_S, _E = BlockState, BlockEvent

TRANSITIONS: Final[Mapping[tuple[BlockState, BlockEvent], BlockState]] = {
    (_S.FREE, _E.ALLOCATE): _S.FILLING,
    (_S.FILLING, _E.COMMIT): _S.READY,
    (_S.FILLING, _E.ABORT): _S.FREE,
    (_S.READY, _E.DEMOTE): _S.LEAVING,
    (_S.READY, _E.EVICT): _S.FREE,
    (_S.LEAVING, _E.HIT): _S.READY,
    (_S.LEAVING, _E.COPIED): _S.FREE,
    (_S.LEAVING, _E.COPY_FAILED): _S.READY,
}
"""Any other pair raises IllegalTransition and changes nothing; stale tickets are dropped before this table."""
