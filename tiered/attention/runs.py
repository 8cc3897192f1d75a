"""Attention of one sequence whose blocks lie in more than one pool: a shared prefix, then its own tokens.

For callers that know their lengths on the host; works on every device. Refuses to know who owns which pool.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tiered.attention.kernels import attend_sequence
from tiered.attention.paged import check_attention, gather_planes


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of a sequence in the blocks of one pool.

    Shapes: pool is (n_blocks, n_layers, n_planes, block_tokens, n_kv_heads, head_dim); block_ids is (n,), int64, on
            the pool's device; the last block may be filled in part, if no run follows.
    """

    pool: torch.Tensor
    block_ids: torch.Tensor
    n_tokens: int


def run_attention(
    queries: torch.Tensor,
    runs: Sequence[Run],
    layer: int,
    *,
    scale: float | None = None,
    latent_dim: int | None = None,
) -> torch.Tensor:
    """Causal attention of the queries, which are the sequence's last tokens, over all runs in their order.

    Shapes, scale and MLA as in :func:`tiered.attention.paged_attention`, for a batch of one.
    Cost:   memory for the sequence's keys and values of one layer; no host sync.
    Errors: ValueError for runs that do not fit together.
    """
    for run in runs:
        scale = check_attention(queries, run.pool, layer, scale=scale, latent_dim=latent_dim)
    if not runs or scale is None:
        raise ValueError("runs: a sequence needs at least one")
    for run, following in itertools.pairwise(runs):
        if run.n_tokens != len(run.block_ids) * run.pool.shape[3] or run.pool.shape[2:] != following.pool.shape[2:]:
            raise ValueError("runs: only the last may end within a block, and all need blocks of one shape")
    n_tokens = sum(run.n_tokens for run in runs)
    if len(queries) > n_tokens or runs[-1].n_tokens > len(runs[-1].block_ids) * runs[-1].pool.shape[3]:
        raise ValueError(f"runs: {len(queries)} queries at the end of {n_tokens} tokens do not fit their blocks")
    keys, values = _gather(runs, layer)
    result = attend_sequence(queries, keys[:n_tokens], values[:n_tokens], scale=scale)
    return result[..., :latent_dim]


def _gather(runs: Sequence[Run], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All runs' tokens one after the other, each copied once."""
    if len(runs) == 1:
        return gather_planes(runs[0].pool, layer, runs[0].block_ids)
    first = runs[0].pool
    n_blocks = sum(len(run.block_ids) for run in runs)
    planes = []
    for plane in range(first.shape[2]):
        joined = first.new_empty((n_blocks, *first.shape[3:]))
        start = 0
        for run in runs:
            end = start + len(run.block_ids)
            torch.index_select(run.pool[:, layer, plane], 0, run.block_ids, out=joined[start:end])
            start = end
        planes.append(joined.flatten(0, 1))
    return planes[0], planes[-1]
