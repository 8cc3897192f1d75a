"""Fetch or recompute: the part of a prompt whose fetching gives the least expected time to first token.

A decision over plain numbers, so that a worker (for its own engine) and a router (for every node) decide alike. What
the numbers are is measured elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tiered.types import SourceRate

K = TypeVar("K", bound=Hashable)

_UNMEASURED: Final = SourceRate()


@dataclass(frozen=True, slots=True)
class Piece(Generic[K]):
    """Neighbouring blocks that may all come from any of the same sources; none means nobody has them."""

    n_blocks: int
    sources: tuple[K, ...]


@dataclass(frozen=True, slots=True)
class Plan(Generic[K]):
    """What is best for the tokens after the hot ones.

    fetched: (source, blocks) in the order of the prompt; the rest is computed. ttft_s: with it. computed_s: without
    fetching anything. Both are None while the engine's rate, or that of a source, was never measured: then all that
    may be had is fetched.
    """

    fetched: tuple[tuple[K, int], ...]
    ttft_s: float | None
    computed_s: float | None

    @property
    def n_blocks(self) -> int:
        return sum(n_blocks for _, n_blocks in self.fetched)


def plan(
    pieces: Sequence[Piece[K]],
    *,
    n_tokens: int,
    block_tokens: int,
    block_bytes: int,
    rates: Mapping[K, SourceRate],
    busy_s: Mapping[K, float],
    prefill_tokens_per_s: float,
) -> Plan[K]:
    """pieces: of the prompt after its hot blocks, in order. n_tokens: of the prompt after them, its partial last
    block among them. busy_s: for how long each source has other work to do first.

    Sources work side by side, so a piece goes to the one that would be done with it first. A piece is fetched whole
    or not at all, with all before it. A source that was never measured would be done at once, so that it is tried.
    Cost: about 1 us a piece.
    """
    known = prefill_tokens_per_s > 0
    computed_s = n_tokens / prefill_tokens_per_s if known else None
    done_s: dict[K, float] = {}
    block_s: dict[K, float] = {}
    chosen: list[tuple[K, int]] = []
    best_s, n_best, n_fetched, fetch_s = computed_s, 0, 0, 0.0
    for piece in pieces:
        if not piece.sources:
            break
        source, end_s = piece.sources[0], math.inf
        for one in piece.sources:
            if one not in block_s:
                rate = rates.get(one, _UNMEASURED)
                block_s[one] = block_bytes / rate.bytes_per_s if rate.bytes_per_s > 0 else 0.0
                done_s[one] = busy_s.get(one, 0.0) + rate.latency_s
            finish_s = done_s[one] + piece.n_blocks * block_s[one]
            if finish_s < end_s:
                source, end_s = one, finish_s
        done_s[source] = end_s
        chosen.append((source, piece.n_blocks))
        n_fetched += piece.n_blocks
        fetch_s = max(fetch_s, end_s)
        if not known:
            n_best = len(chosen)
            continue
        left = max(0, n_tokens - n_fetched * block_tokens)
        ttft_s = fetch_s + left / prefill_tokens_per_s
        assert best_s is not None
        if ttft_s < best_s:
            best_s, n_best = ttft_s, len(chosen)
    return Plan(tuple(chosen[:n_best]), best_s, computed_s)
