"""Attention as the textbook has it, over contiguous keys and values in float64, and random batches to put to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tiered.attention import PagedBatch

N_LAYERS = 3
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Shape:
    """lengths: tokens and queries of each sequence."""

    lengths: Sequence[tuple[int, int]]
    block_tokens: int = 4
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 8
    dtype: torch.dtype = torch.float32
    latent_dim: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Case:
    """A pool whose every slot that no sequence owns holds NaN, and the same tokens contiguously per sequence."""

    shape: Shape
    pool: torch.Tensor
    batch: PagedBatch
    queries: torch.Tensor
    planes: Sequence[torch.Tensor]
    scale: float

    def expected(self, layer: int) -> torch.Tensor:
        """Shapes: (total_queries, n_heads, value dim), float64."""
        results, row = [], 0
        for planes, (_, n_queries) in zip(self.planes, self.shape.lengths, strict=True):
            keys, values = planes[layer, 0], planes[layer, -1][..., : self.shape.latent_dim]
            results.append(attend(self.queries[row : row + n_queries], keys, values, scale=self.scale))
            row += n_queries
        return torch.cat(results)


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scale: float) -> torch.Tensor:
    group = queries.shape[1] // keys.shape[1]
    wide_keys, wide_values = (t.double().repeat_interleave(group, 1) for t in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.double(), wide_keys) * scale
    n_queries, n_tokens = scores.shape[1:]
    hidden = torch.ones(n_queries, n_tokens, dtype=torch.bool).triu(n_tokens - n_queries + 1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), wide_values)


def make_case(shape: Shape, *, query_len_max: int | None = None) -> Case:
    generator = torch.Generator().manual_seed(shape.seed)
    n_planes = 2 if shape.latent_dim is None else 1
    block = (shape.block_tokens, shape.n_kv_heads, shape.head_dim)
    needed = [-(-n_tokens // shape.block_tokens) for n_tokens, _ in shape.lengths]
    n_blocks = sum(needed) + 3
    pool = torch.full((n_blocks, N_LAYERS, n_planes, *block), torch.nan, dtype=shape.dtype)
    free = torch.randperm(n_blocks, generator=generator).tolist()
    table = torch.full((len(needed), max(needed, default=1) + 1), -1)
    planes = []
    for row, ((n_tokens, _), count) in enumerate(zip(shape.lengths, needed, strict=True)):
        ids = torch.tensor([free.pop() for _ in range(count)], dtype=torch.int64)
        table[row, :count] = ids
        content = torch.randn((N_LAYERS, n_planes, n_tokens, *block[1:]), generator=generator).to(shape.dtype)
        for token in range(n_tokens):
            block_id = ids[token // shape.block_tokens]
            pool[block_id, :, :, token % shape.block_tokens] = content[:, :, token]
        planes.append(content)
    total = sum(n_queries for _, n_queries in shape.lengths)
    batch = PagedBatch(
        table,
        torch.tensor([n_tokens for n_tokens, _ in shape.lengths]),
        torch.tensor([n_queries for _, n_queries in shape.lengths]),
        query_len_max=query_len_max,
    )
    queries = torch.randn((total, shape.n_heads, shape.head_dim), generator=generator).to(shape.dtype)
    return Case(shape, pool, batch, queries, planes, scale=0.3)
