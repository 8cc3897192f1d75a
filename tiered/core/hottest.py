"""hottest: the prefixes used most, found by looking at a few slots at a time; nothing is counted for it.

A prefix ends where the use of its blocks ends: at a block whose child was used less often, or that has no child. Of
two that end on one chain and were used about as often, the one that saved more blocks is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from tiered.blocks.record import NO_PARENT, BlockRecord
from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.types import BlockId, PrefixUse

NAMED_MAX: Final = 16
"""Some hundred bytes each in what a node publishes with every heartbeat."""

_CANDIDATES_MAX: Final = 512

_STEPS_MAX: Final = 65_536
"""Along chains, at the end of a pass: some 5 ms."""

_RESIDENT: Final = (BlockState.READY, BlockState.LEAVING)


@dataclass(slots=True)
class Hottest:
    """One pass over the slots after another; found is what the last whole pass came to."""

    found: tuple[PrefixUse, ...] = ()
    _next_slot: int = 0
    _candidates: dict[BlockId, int] = field(default_factory=dict)

    def look(self, core: CacheCore, n_slots: int) -> bool:
        """At so many slots more; whether that ended a pass. Cost: about 0.4 us a slot."""
        records = core.table.records
        end = min(self._next_slot + n_slots, len(records))
        for slot in range(self._next_slot, end):
            record = records[slot]
            if not record.hits or record.state not in _RESIDENT:
                continue
            if not record.children:
                self._candidates[BlockId(slot)] = _saved(record)
            parent = record.parent
            if parent != NO_PARENT and records[parent].hits > record.hits:
                self._candidates[parent] = _saved(records[parent])
        if len(self._candidates) > 2 * _CANDIDATES_MAX:
            self._candidates = dict(nlargest(_CANDIDATES_MAX, self._candidates.items(), key=lambda pair: pair[1]))
        self._next_slot = end
        if end < len(records):
            return False
        self.found = tuple(_uses(records, self._candidates))
        self._next_slot, self._candidates = 0, {}
        return True


def _saved(record: BlockRecord) -> int:
    """Blocks that need not be computed since this prefix was here."""
    return record.hits * (record.depth + 1)


def _uses(records: Sequence[BlockRecord], candidates: Mapping[BlockId, int]) -> Iterator[PrefixUse]:
    """Each with the one named that it goes on from; their chains were walked once, so this is as long again."""
    named = _named(records, candidates)
    for block_id in named:
        record = records[block_id]
        before = _chain(records, record.parent)
        within = next((records[each].block_hash.hex() for each in before if each in named), "")
        yield PrefixUse(record.tenant, record.block_hash.hex(), record.depth + 1, record.hits, within)


def _named(records: Sequence[BlockRecord], candidates: Mapping[BlockId, int]) -> Mapping[BlockId, int]:
    """The last blocks of the best candidates that are still here, without those for which another one on their chain
    stands; with their hits."""
    here = [block_id for block_id in candidates if records[block_id].state in _RESIDENT and records[block_id].hits]
    passed: dict[BlockId, int] = {}  # blocks of the chains named so far -> hits of the prefix named first
    ends: dict[BlockId, int] = {}
    steps_left = _STEPS_MAX
    for block_id in sorted(here, key=lambda each: (-_saved(records[each]), records[each].block_hash)):
        record = records[block_id]
        steps_left -= record.depth
        if len(ends) == NAMED_MAX or steps_left < 0:
            break
        chain = list(_chain(records, block_id))
        rivals = [ends[each] for each in chain if each in ends]
        if block_id in passed:
            rivals.append(passed[block_id])
        if any(rival <= 2 * record.hits and record.hits <= 2 * rival for rival in rivals):
            continue
        ends[block_id] = record.hits
        for each in chain:
            passed.setdefault(each, record.hits)
    return ends


def _chain(records: Sequence[BlockRecord], block_id: BlockId) -> Iterator[BlockId]:
    """The block and all before it."""
    while block_id != NO_PARENT:
        yield block_id
        block_id = records[block_id].parent
