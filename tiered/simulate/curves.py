"""Miss-ratio curves: what LRU over whole prefixes hits with room for any number of blocks, in one pass.

Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970: LRU of size n holds
the n most recently used blocks, whatever else is true, so an access is a hit exactly where its place in that order is
at most n. Our core touches a request's blocks from the deepest up, so a parent is always younger than what hangs on
it: leaf-first costs nothing, hits have no gaps, and the places alone say what the prefix-aware replay would count
(``tests/unit/simulate/test_curves.py`` holds them equal at every size).

What makes it fast: a request takes its blocks out of the order as prefixes of earlier requests' paths, and puts them
on top as one run. So what an earlier request was the last to use is always a run from some depth to its end. The
order is a list of such runs, one a request; places within a run count up; and only where a run begins has to be
asked, of a tree of sums over the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from tiered.errors import ConfigError
from tiered.simulate.trace import Request


@dataclass(frozen=True, slots=True)
class Curve:
    """hits[n] is how many accesses hit with room for n blocks; beyond the last it stays there."""

    accesses: int
    hits: Sequence[int]

    def hits_at(self, n_blocks: int) -> int:
        return self.hits[min(n_blocks, len(self.hits) - 1)]

    def ratio_at(self, n_blocks: int) -> float:
        """Percent."""
        return 100 * self.hits_at(n_blocks) / max(1, self.accesses)

    def room_for(self, hits: int) -> int:
        """The fewest blocks with which at least so many accesses hit, as far as any number of them can."""
        wanted = min(hits, self.hits[-1])
        low, high = 0, len(self.hits) - 1
        while low < high:
            middle = (low + high) // 2
            if self.hits[middle] >= wanted:
                high = middle
            else:
                low = middle + 1
        return low


def lru_curve(requests: Iterable[Request]) -> Curve:
    """Cost: a fraction of a microsecond a block, and O(log requests) a run.

    Errors: ConfigError where an id does not name a whole prefix, so that there is no such order.
    """
    requests = list(requests)
    last: dict[int, int] = {}
    """The request that used a block last."""
    before: dict[int, int | None] = {}
    """The block before it, the same in every path."""
    left = _Sums(len(requests))
    """Of how many blocks each request is still the last one."""
    steps = [0]
    """Of the histogram of places: up where a run of them begins, down behind its end."""
    for number, request in enumerate(requests):
        if not _is_path(before, request.blocks):
            raise ConfigError(
                f"trace: request {number + 1} reaches a block by another way than an earlier one did; each id has to "
                "name a whole prefix"
            )
        runs = _runs(last, request.blocks)
        for earlier, n_blocks in runs:
            above = left.after(earlier)
            steps.extend([0] * (above + n_blocks + 1 - len(steps)))
            steps[above] += 1
            steps[above + n_blocks] -= 1
        for earlier, n_blocks in runs:
            left.add(earlier, -n_blocks)
        left.add(number, len(request.blocks))
        last.update(dict.fromkeys(request.blocks, number))
    accesses = sum(len(request.blocks) for request in requests)
    return Curve(accesses, [0, *accumulate(accumulate(steps[:-1]))])


def _is_path(before: dict[int, int | None], blocks: Sequence[int]) -> bool:
    """Whether each block hangs on the one that it always hung on; notes that of the new ones."""
    parents = [None, *blocks[:-1]]
    before.update((block, parent) for block, parent in zip(blocks, parents, strict=False) if block not in before)
    return list(map(before.get, blocks)) == parents[: len(blocks)]


def _runs(last: Mapping[int, int], blocks: Sequence[int]) -> list[tuple[int, int]]:
    """The known blocks of a path as (request that used them last, how many), from the first block on."""
    runs = groupby(map(last.get, blocks))
    return [(earlier, sum(1 for _ in run)) for earlier, run in runs if earlier is not None]


class _Sums:
    """Numbers by place, and the sum of those behind a place: Fenwick's tree. O(log n) each."""

    def __init__(self, n: int) -> None:
        self._tree = [0] * (n + 1)
        self._total = 0

    def add(self, place: int, value: int) -> None:
        self._total += value
        place += 1
        while place < len(self._tree):
            self._tree[place] += value
            place += place & -place

    def after(self, place: int) -> int:
        place += 1
        total = self._total
        while place:
            total -= self._tree[place]
            place &= place - 1
        return total
