"""The path for CUDA: padded shapes that the host knows, lengths that stay on the device.

Owns index and mask arithmetic over lengths it never sees. Works on any device, so that its results are tested where
there is no GPU, and on ``meta``, where reading a value back is an error.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from tiered.attention.batch import PagedBatch
from tiered.attention.kernels import PIECE_QUERIES

GROUP_BYTES: Final = 256 << 20
"""Bound on what one round gathers and masks, unless a single sequence is larger: small beside a device's memory, and
enough sequences at once to fill it with work."""


def attend_padded(
    queries: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    batch: PagedBatch,
    *,
    scale: float,
    latent_dim: int | None,
) -> torch.Tensor:
    """As :func:`tiered.attention.paged_attention`, for arguments it has checked."""
    total, n_heads, head_dim = queries.shape
    if not total or not len(batch):
        return queries.new_empty((total, n_heads, latent_dim or head_dim))
    n_queries = min(batch.query_len_max or total, total)
    starts = batch.query_lens.cumsum(0) - batch.query_lens
    # One row more than asked for takes what padded queries compute.
    out = queries.new_empty((total + 1, n_heads, latent_dim or head_dim))
    n_at_once = _sequences_at_once(pool, batch, min(n_queries, PIECE_QUERIES), n_heads)
    for first in range(0, len(batch), n_at_once):
        rows = slice(first, first + n_at_once)
        seq_lens, query_lens = batch.seq_lens[rows, None], batch.query_lens[rows, None]
        keys, values = _gather_tokens(pool, layer, batch.block_table[rows], seq_lens)
        for start in range(0, n_queries, PIECE_QUERIES):
            offsets = torch.arange(start, min(start + PIECE_QUERIES, n_queries), device=queries.device)
            targets = torch.where(offsets < query_lens, starts[rows, None] + offsets, total)
            sources = targets.clamp(max=total - 1).flatten()
            picked = queries.index_select(0, sources).view(*targets.shape, n_heads, head_dim)
            result = _attend(picked, keys, values, seq_lens - query_lens + offsets, scale=scale)
            out.index_copy_(0, targets.flatten(), result.flatten(0, 1)[..., :latent_dim])
    return out[:total]


def _sequences_at_once(pool: torch.Tensor, batch: PagedBatch, n_queries: int, n_heads: int) -> int:
    _, _, n_planes, block_tokens, n_kv_heads, head_dim = pool.shape
    n_tokens = batch.block_table.shape[1] * block_tokens
    per_token = n_planes * n_kv_heads * head_dim + n_queries * n_heads // n_kv_heads
    return max(1, GROUP_BYTES // (n_tokens * per_token * pool.element_size()))


def _gather_tokens(
    pool: torch.Tensor, layer: int, block_table: torch.Tensor, seq_lens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, each (n, max_blocks * block_tokens, n_kv_heads, head_dim).

    Beyond its end a sequence repeats its last token: a masked token takes part times zero, and zero times what memory
    that no one has written may hold is not zero.
    """
    _, n_layers, n_planes, block_tokens, n_kv_heads, head_dim = pool.shape
    n_tokens = block_table.shape[1] * block_tokens
    positions = torch.arange(n_tokens, device=pool.device).minimum((seq_lens - 1).clamp(min=0))
    blocks = block_table.gather(1, positions // block_tokens).clamp(min=0)
    first_plane = (blocks * n_layers + layer) * n_planes
    tokens = pool.view(-1, n_kv_heads, head_dim)
    planes = [
        tokens.index_select(0, ((first_plane + plane) * block_tokens + positions % block_tokens).flatten())
        for plane in range(n_planes)
    ]
    shape = (len(block_table), n_tokens, n_kv_heads, head_dim)
    return planes[0].view(shape), planes[-1].view(shape)


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, *, scale: float
) -> torch.Tensor:
    """Shapes: queries is (n, n_queries, n_heads, head_dim), positions (n, n_queries); returns queries' shape."""
    n, n_queries, n_heads, head_dim = queries.shape
    n_tokens, n_kv_heads = keys.shape[1:3]
    group = n_heads // n_kv_heads
    # Heads that share a key head stand as more queries: kernels that take a mask would need keys repeated for them.
    folded = queries.view(n, n_queries, n_kv_heads, group, head_dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    visible = torch.arange(n_tokens, device=keys.device) <= positions[..., None]
    mask = visible[:, None].expand(n, group, n_queries, n_tokens).reshape(n, 1, group * n_queries, n_tokens)
    result = scaled_dot_product_attention(
        folded, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, scale=scale
    )
    unfolded = result.reshape(n, n_kv_heads, group, n_queries, head_dim).permute(0, 3, 1, 2, 4)
    return unfolded.reshape(n, n_queries, n_heads, head_dim)
