"""stack: one tenant's blocks in the order of their last use, for a sample of them.

Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015: a block is in the sample if its hash lies
below a threshold, so every access to it is seen or none is, and places in the sample's order are places among all
blocks scaled by the rate. Our hashes are SHA-256, uniform already, so sampling is one comparison.

Mattson et al., 1970: by LRU of n blocks an access is a hit exactly where its place in that order is at most n. Blocks
are touched from the deepest up, as the core does, so a parent is younger than what hangs on it and a prefix lies in
the order without gaps: leaf-first costs nothing, and places alone say what a match would have found. A request takes
blocks out of the order in runs that an earlier request left there, so what is asked of the order is asked once a run.

It knows neither times nor weights. Ids that are no chains cost their tenant its curve and nobody anything else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from tiered.types import HASH_BYTES, BlockHash

_RATE_BYTES: Final = 8
_WHOLE: Final = 1 << 8 * _RATE_BYTES

SMALLEST_STEP: Final = 16
"""At most one block in so many is sampled: with more, small tenants' lookups would cost what they must not."""

_KEPT: Final = 0.75
"""Of a sample that has grown too large: few enough that sorting it again is rare."""

_PER_MAX: Final = float(1 << 32)
"""What no honest tenant reaches: hashes that are not spread evenly must not make numbers that nobody can send."""


class SampledStack:
    """The order, for hashes below ``threshold``; each stands for ``per`` blocks."""

    __slots__ = ("_last", "_order", "_stamp", "per", "threshold")

    def __init__(self) -> None:
        self.threshold: bytes = (_WHOLE // SMALLEST_STEP).to_bytes(_RATE_BYTES, "big").ljust(HASH_BYTES, b"\0")
        self.per: float = SMALLEST_STEP
        self._last: dict[BlockHash, int] = {}
        """When each was used last, by a count of uses."""
        self._order: list[int] = []
        """The same numbers, rising. A list, not a tree: moving some thousand of them costs less than one step of a
        tree does here."""
        self._stamp = 0

    def __len__(self) -> int:
        return len(self._last)

    @property
    def stamp(self) -> int:
        """All uses from now on are newer than this."""
        return self._stamp

    @property
    def is_narrowed(self) -> bool:
        """Whether fewer blocks are sampled than may be."""
        return self.per > SMALLEST_STEP

    def lowest(self, n_hashes: int) -> list[BlockHash]:
        """Of the sampled blocks, those whose hashes are lowest: comparable between samples of different rates."""
        return sorted(self._last)[:n_hashes]

    def touch(self, chosen: Sequence[BlockHash]) -> list[tuple[int, int]]:
        """Use a request's sampled blocks, which are given from the first on.

        Returns where they were before: (place of the first, how many), each run from place to place + n - 1, the
        youngest of all being 1. What no run covers was not there, or lay behind one that was not.
        Cost: some 0.1 us a block and 1 us a run.
        """
        stamps = list(map(self._last.get, chosen))
        order, n_blocks, n_all = self._order, len(chosen), len(self._order)
        runs: list[tuple[int, int]] = []
        at, below = 0, self._stamp + 1
        while at < n_blocks and (stamp := stamps[at]) is not None and stamp < below:
            young, end = bisect_left(order, stamp), n_blocks
            oldest = stamp - (n_blocks - 1 - at)
            if stamps[-1] != oldest or order[young - (n_blocks - 1 - at)] != oldest:  # else it is one run to the end
                end = at + 1
                while end < n_blocks and stamps[end] == stamp - (end - at):
                    end += 1
            runs.append((n_all - young, end - at))
            below = stamp - (end - at) + 1
            at = end
        if stamps.count(None) == n_blocks - at:
            for place, n_run in runs:  # from the youngest down, so what is still to be taken out has not moved
                del order[n_all - place - n_run + 1 : n_all - place + 1]
        else:
            runs = self._take_out(stamps)
        top = self._stamp + n_blocks
        order.extend(range(self._stamp + 1, top + 1))
        self._last.update(zip(chosen, range(top, self._stamp, -1), strict=True))
        self._stamp = top
        if len(order) != len(self._last):  # a hash was named twice
            self._order = sorted(self._last.values())
        return runs

    def _take_out(self, stamps: Sequence[int | None]) -> list[tuple[int, int]]:
        """As in :meth:`touch`, where a block is younger than one before it: somebody has used the end of a chain
        alone. It counts as found only where all before it would be."""
        order, n_all = self._order, len(self._order)
        places: list[tuple[int, int]] = []
        found: set[int] = set()
        furthest, has_gap = 0, False
        for stamp in stamps:
            if stamp is None:
                has_gap = True
                continue
            index = bisect_left(order, stamp)
            found.add(index)
            if not has_gap:
                furthest = max(furthest, n_all - index)
                places.append((furthest, 1))
        for index in sorted(found, reverse=True):
            del order[index]
        return places

    def narrow(self, n_blocks_max: int) -> None:
        """Lower the threshold if there are more than so many. Cost: a sort, once for every quarter of them."""
        if len(self._last) <= n_blocks_max:
            return
        names = sorted(self._last)
        n_kept = max(1, int(n_blocks_max * _KEPT))
        self.threshold = names[n_kept]
        rate = int.from_bytes(self.threshold[:_RATE_BYTES].ljust(_RATE_BYTES, b"\0"), "big")
        self.per = min(_PER_MAX, _WHOLE / max(1, rate))
        self._last = {name: self._last[name] for name in names[:n_kept]}
        self._order = sorted(self._last.values())

    def forget(self, stamp: int) -> None:
        """Blocks that were not used since then."""
        n_old = bisect_left(self._order, stamp + 1)
        if n_old:
            del self._order[:n_old]
            self._last = {name: used for name, used in self._last.items() if used > stamp}
