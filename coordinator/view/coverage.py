"""Which of a prompt's blocks are where: runs of neighbours that the same nodes hold, and counts per tier.

A decision over the mirror's bits; which prompt it is, and who asks, is not its business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from coordinator.view.mirror import REDIS_BIT

RUNS_MAX: Final = 1_024
NODES_PER_RUN_MAX: Final = 32
"""Named; how many there are is said besides."""


@dataclass(frozen=True, slots=True)
class CoverageRun:
    first_block: int
    n_blocks: int
    nodes: tuple[str, ...]
    n_nodes: int
    in_redis: bool


@dataclass(frozen=True, slots=True)
class Coverage:
    """Blocks: hot on some node, in Redis, nowhere; one may be hot and in Redis. covered_blocks: from the first on
    without a gap, wherever they are. runs: the first RUNS_MAX; n_runs: of all."""

    hot_blocks: int
    redis_blocks: int
    nowhere_blocks: int
    covered_blocks: int
    runs: tuple[CoverageRun, ...]
    n_runs: int


def cover(masks: Sequence[int], nodes: Mapping[int, str]) -> Coverage:
    """nodes: by bit, those whose blocks count."""
    counting = REDIS_BIT | sum(nodes)
    runs: list[CoverageRun] = []
    first = hot = in_redis = nowhere = n_runs = 0
    covered: int | None = None
    for mask, group in groupby(mask & counting for mask in masks):
        n_blocks = sum(1 for _ in group)
        owners = mask & ~REDIS_BIT
        hot += n_blocks if owners else 0
        in_redis += n_blocks if mask & REDIS_BIT else 0
        if not mask:
            nowhere += n_blocks
            covered = first if covered is None else covered
        n_runs += 1
        if len(runs) < RUNS_MAX:
            names = sorted(name for bit, name in nodes.items() if bit & owners)
            runs.append(
                CoverageRun(first, n_blocks, tuple(names[:NODES_PER_RUN_MAX]), len(names), bool(mask & REDIS_BIT))
            )
        first += n_blocks
    return Coverage(hot, in_redis, nowhere, first if covered is None else covered, tuple(runs), n_runs)
