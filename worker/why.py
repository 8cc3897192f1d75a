"""What this node remembers of what happened to blocks: a bounded ring, found by block and by time.

Owns the order, the time stamps and the bounds. The core's notes are put in after each of its turns, on the loop; the
movers' come from their threads whenever they like. Nothing is put into words before somebody asks.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from tiered.core.why import Entry, Evicted, Run, happening_of, hashes_of, tenant_of, what_of
from tiered.types import BlockHash, Happening, Source, Told

CAUSES: Final = frozenset({"corrupt"})
"""What movers say before the core acts upon it; all else they say of what the core has begun."""

NOTED_MAX: Final = 16_384
"""Of movers, between two turns; older ones are lost then."""

_EVENT_BYTES: Final = 260
_BLOCK_BYTES: Final = 150
_DETAIL_BYTES: Final = 60
"""What an event, each block that finds it, and each of its details cost, by measurement and rounded up."""


class _Kept(msgspec.Struct, frozen=True, gc=False):
    seq: int
    at: float
    entry: Entry


class WhyRing:
    """events_max: an event of several blocks counts once for each. bytes_max: of memory, as estimated.

    Numbers begin at this life's time in microseconds: they grow across restarts, so that who follows them goes on.
    """

    def __init__(self, *, events_max: int, bytes_max: int, wall: Callable[[], float] = time.time) -> None:
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._wall = wall
        self._kept: deque[_Kept] = deque()
        self._of_block: dict[BlockHash, _Kept | list[_Kept]] = {}
        """One or many: most blocks have one, and a list each would cost as much as all the rest."""
        self._noted: deque[tuple[float, Happening]] = deque(maxlen=NOTED_MAX)
        self._n_of_kind: Counter[str] = Counter()
        """Entries: whoever looks for a rare kind can stop after the last."""
        self._n_events = 0
        self._n_bytes = 0
        self._last_at = 0.0
        self.last_seq = int(wall() * 1e6)
        self.lost = 0
        """Events that had to make room."""

    def __len__(self) -> int:
        return self._n_events

    @property
    def n_bytes(self) -> int:
        return self._n_bytes

    def note(
        self,
        what: str,
        block_hash: BlockHash,
        tenant: str,
        *,
        tier: str = Source.REDIS.value,
        n_blocks: int = 1,
        **detail: int | float | str,
    ) -> None:
        """From any thread; it is seen from the next turn on."""
        self._noted.append((self._wall(), Happening(what, block_hash, tenant, tier, n_blocks, detail)))

    def turn(self, entries: Sequence[Entry]) -> None:
        """Put in what the core has noted since the last time, and what the movers have, in the order of cause and
        effect: a bad value before the miss it led to, a copy before its arrival below."""
        if not entries and not self._noted:
            return
        now = self._wall()
        effects: list[tuple[float, Happening]] = []
        while self._noted:
            at, happening = self._noted.popleft()
            if happening.what in CAUSES:
                self._put(at, happening)
            else:
                effects.append((at, happening))
        for entry in entries:
            self._put(now, entry)
        for at, happening in effects:
            self._put(at, happening)
        while self._kept and (self._n_events > self._events_max or self._n_bytes > self._bytes_max):
            self._drop_oldest()

    def explain(self, hashes: Sequence[BlockHash], *, n_max: int) -> tuple[Told, ...]:
        """What happened to these blocks, oldest first; the newest ``n_max``. Cost: O(their events)."""
        found = [
            Told(kept.seq, kept.at, happening_of(kept.entry, block_hash))
            for block_hash in dict.fromkeys(hashes)
            for kept in self._events_of(block_hash)
        ]
        found.sort(key=lambda told: told.seq)
        return tuple(found[-n_max:])

    def recent(
        self, *, after_seq: int, n_max: int, tenant: str, what: Collection[str]
    ) -> tuple[tuple[Told, ...], int]:
        """The newest, or the first after a number; oldest first, with the number to go on from.

        tenant, what: of that tenant, and of those kinds alone, where some are given. after_seq: 0 for the newest.
        Cost: one look at each event up to the last that is told, or that is of those kinds; none at those before a
        number.
        """
        in_turn: Iterator[_Kept] = reversed(self._kept)
        if after_seq:
            # Numbers have no gaps, so that the place of one in the ring is known.
            n_newer = max(0, self.last_seq - after_seq)
            in_turn = islice(self._kept, max(0, len(self._kept) - n_newer), None)
        if what:
            of_kind = (kept for kept in in_turn if what_of(kept.entry) in what)
            in_turn = islice(of_kind, sum(self._n_of_kind[kind] for kind in what))
        found = list(islice((kept for kept in in_turn if not tenant or tenant_of(kept.entry) == tenant), n_max))
        if not after_seq:
            found.reverse()
        # A full answer may have left some out; who follows without one is sent to the end.
        goes_on_from = found[-1].seq if after_seq and len(found) == n_max else self.last_seq
        return tuple(Told(kept.seq, kept.at, happening_of(kept.entry)) for kept in found), goes_on_from

    def _put(self, at: float, entry: Entry) -> None:
        self.last_seq += 1
        self._last_at = max(self._last_at, at)  # the wall clock may be set back, what happened does not
        kept = _Kept(self.last_seq, self._last_at, entry)
        self._kept.append(kept)
        self._n_of_kind[what_of(entry)] += 1
        hashes = hashes_of(entry)
        self._n_events += len(hashes)
        self._n_bytes += _size(entry)
        of_block = self._of_block
        for block_hash in hashes:
            before = of_block.get(block_hash)
            if before is None:
                of_block[block_hash] = kept
            elif isinstance(before, list):
                before.append(kept)
            else:
                of_block[block_hash] = [before, kept]

    def _drop_oldest(self) -> None:
        kept = self._kept.popleft()
        self._n_of_kind[what_of(kept.entry)] -= 1
        hashes = hashes_of(kept.entry)
        self._n_events -= len(hashes)
        self._n_bytes -= _size(kept.entry)
        self.lost += len(hashes)
        of_block = self._of_block
        for block_hash in hashes:
            events = of_block[block_hash]
            if isinstance(events, list):
                del events[0]  # what is oldest of all is oldest of the block
                if len(events) == 1:
                    of_block[block_hash] = events[0]
            else:
                del of_block[block_hash]

    def _events_of(self, block_hash: BlockHash) -> Sequence[_Kept]:
        events = self._of_block.get(block_hash)
        if events is None:
            return ()
        return events if isinstance(events, list) else (events,)


def _size(entry: Entry) -> int:
    if isinstance(entry, Evicted):
        return _EVENT_BYTES + _BLOCK_BYTES
    happening = entry.first if isinstance(entry, Run) else entry
    texts = sum(len(value) for value in happening.detail.values() if isinstance(value, str))
    return _EVENT_BYTES + _BLOCK_BYTES * len(hashes_of(entry)) + _DETAIL_BYTES * len(happening.detail) + 4 * texts
