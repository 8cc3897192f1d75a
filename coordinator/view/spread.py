"""How one prompt lies over the cluster: who holds its beginning, and where a node would have the rest from.

Owns the way from the mirror's bits to pieces that can be planned, and a bound on what any plan of them could reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

from coordinator.view.mirror import REDIS_BIT
from coordinator.view.naming import NamedBlocks
from tiered.estimate.plan import Piece
from tiered.hashing.scope import ModelScope
from tiered.types import BlockHash, Epoch, NodeId, NodeRates, Source, SourceRate

STRETCHES_MAX: Final = 64
"""Changes of source that are looked at; a prompt more scattered than this counts as computed from there on."""

PIECE_BLOCKS_MIN: Final = 32
"""Of which a node fetches some or none, as it does itself."""

PIECES_PER_STRETCH: Final = 4
"""Blocks of the same sources are cut into no more pieces than this, since each costs 2 us for each node. A node may
cut finer, so it may do better than expected here, by what a fourth of a stretch takes at most."""


class Holders(Protocol):
    """What of the mirror is asked."""

    def masks(self, hashes: Sequence[BlockHash]) -> list[int]: ...

    def bit(self, node: NodeId, epoch: Epoch) -> int: ...


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring blocks that the same have: mask as in the mirror, without whoever does not count."""

    n_blocks: int
    mask: int


@dataclass(frozen=True, slots=True)
class Spread:
    """One scope's prompt, and where its blocks are.

    hot: by bit, how many from the first on. seen: the bits of all that hold some. n_covered: blocks from the first on
    that are anywhere. shared: the pieces of a node that holds none.
    """

    scope: ModelScope
    n_tokens: int
    runs: tuple[Run, ...]
    hot: Mapping[int, int]
    seen: int
    n_covered: int
    shared: tuple[Piece[Source], ...]

    @staticmethod
    def of(named: NamedBlocks, holders: Holders, bits: Mapping[str, int], n_tokens: int) -> Spread:
        counting = REDIS_BIT | sum(set(bits.values()))
        runs = tuple(runs_of(mask & counting for mask in holders.masks(named.hashes)))
        seen = 0
        for run in runs:
            seen |= run.mask
        return Spread(
            scope=named.scope,
            n_tokens=n_tokens,
            runs=runs,
            hot=_hot_blocks(runs),
            seen=seen,
            n_covered=sum(run.n_blocks for run in runs),
            shared=_pieces(runs, skip=0, bit=0),
        )

    def at_least_s(self, bit: int, rates: NodeRates) -> float:
        """No plan of any number of blocks is quicker: both sources bring them side by side, and what is in between of
        fetching none and all takes a time in between."""
        layout = self.scope.layout
        hot_blocks = self.hot.get(bit, 0)
        n_left = max(0, self.n_tokens - hot_blocks * layout.block_tokens)
        computed_s = n_left / rates.prefill_tokens_per_s
        n_fetched = self.n_covered - hot_blocks
        both = _bytes_per_s(rates.peers) + _bytes_per_s(rates.redis)
        fetch_s = rates.waiting_s + min(rates.peers.latency_s, rates.redis.latency_s)
        fetch_s += n_fetched * layout.block_bytes / both
        left_s = max(0, n_left - n_fetched * layout.block_tokens) / rates.prefill_tokens_per_s
        return min(computed_s, fetch_s + left_s)

    def pieces(self, bit: int, hot_blocks: int) -> tuple[Piece[Source], ...]:
        return _pieces(self.runs, skip=hot_blocks, bit=bit) if bit & self.seen else self.shared


def runs_of(masks: Iterable[int]) -> Iterator[Run]:
    """Up to the first block that nobody has."""
    for mask, group in groupby(masks):
        if not mask:
            return
        yield Run(sum(1 for _ in group), mask)


def _hot_blocks(runs: Sequence[Run]) -> dict[int, int]:
    """By bit, how many blocks from the first on each has without a gap. Cost: O(runs + holders)."""
    found: dict[int, int] = {}
    if not runs:
        return found
    staying, n_blocks = runs[0].mask & ~REDIS_BIT, 0
    for run in runs:
        found |= dict.fromkeys(_bits(staying & ~run.mask), n_blocks)
        staying &= run.mask
        if not staying:
            return found
        n_blocks += run.n_blocks
    return found | dict.fromkeys(_bits(staying), n_blocks)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


def _pieces(runs: Sequence[Run], *, skip: int, bit: int) -> tuple[Piece[Source], ...]:
    """The blocks after the first ``skip`` by where a node with this bit would have them from."""
    stretches: list[tuple[tuple[Source, ...], int]] = []
    for run in runs:
        n_blocks = run.n_blocks - skip
        skip = max(0, -n_blocks)
        if n_blocks <= 0:
            continue
        sources = _SOURCES[bool(run.mask & ~REDIS_BIT & ~bit), bool(run.mask & REDIS_BIT)]
        if not sources:
            break
        if stretches and stretches[-1][0] == sources:
            stretches[-1] = sources, stretches[-1][1] + n_blocks
        elif len(stretches) == STRETCHES_MAX:
            break
        else:
            stretches.append((sources, n_blocks))
    return tuple(
        Piece(min(step, n_blocks - first), sources)
        for sources, n_blocks in stretches
        for step in (max(PIECE_BLOCKS_MIN, -(-n_blocks // PIECES_PER_STRETCH)),)
        for first in range(0, n_blocks, step)
    )


_SOURCES: Final[Mapping[tuple[bool, bool], tuple[Source, ...]]] = {
    (False, False): (),
    (True, False): (Source.PEER,),
    (False, True): (Source.REDIS,),
    (True, True): (Source.PEER, Source.REDIS),
}


def _bytes_per_s(rate: SourceRate) -> float:
    """One that was never measured is taken to be at once."""
    return rate.bytes_per_s if rate.bytes_per_s > 0 else math.inf
