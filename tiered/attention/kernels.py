"""The kernel calls everything here comes down to: one sequence with a causal tail, a group of decodes, a long decode.

All fold grouped queries so that keys and values are never repeated for the heads that share them. Knows tensors that
are already contiguous in tokens; refuses to know blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

PIECE_QUERIES: Final = 256
"""Queries of one masked call: bounds the mask, and a piece leaves out the keys after its last query."""


HEADS_FIRST_QUERIES: Final = 32
"""From so many queries on, laying keys and values out heads first costs less than it saves the kernel: 5 to 10 %."""


def attend_sequence(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Causal attention of one sequence whose last tokens are the queries.

    Shapes: queries is (n_queries, n_heads, dim), keys (n_tokens, n_kv_heads, dim), values (n_tokens, n_kv_heads,
            value_dim); returns (n_queries, n_heads, value_dim).
    """
    n_queries, n_tokens = len(queries), len(keys)
    if n_queries == 1:
        return attend_decodes(queries, keys[None], values[None], mask=None, scale=scale)
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)
    if n_queries >= HEADS_FIRST_QUERIES:
        keys, values = keys.contiguous(), values.contiguous()
    if n_queries == n_tokens:
        return _attend_piece(queries, keys, values, mask=None, scale=scale)
    first = n_tokens - n_queries
    pieces = []
    for start in range(0, n_queries, PIECE_QUERIES):
        piece = queries[start : start + PIECE_QUERIES]
        end = first + start + len(piece)
        positions = torch.arange(first + start, end, device=queries.device)
        mask = torch.arange(end, device=queries.device) <= positions[:, None]
        pieces.append(_attend_piece(piece, keys[:, :end], values[:, :end], mask=mask, scale=scale))
    return torch.cat(pieces)


def _attend_piece(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Heads that share a key head become the batch of the call, over which keys and values are only expanded.

    Shapes: keys and values are heads first, (n_kv_heads, n_tokens, dim).
    """
    n_queries, n_heads, _ = queries.shape
    group = n_heads // len(keys)
    folded = queries.view(n_queries, len(keys), group, -1).permute(2, 1, 0, 3)
    result = scaled_dot_product_attention(
        folded,
        keys.expand(group, -1, -1, -1),
        values.expand(group, -1, -1, -1),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
    )
    return result.permute(2, 1, 0, 3).reshape(n_queries, n_heads, -1)


def attend_decodes(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """One query each of n sequences; heads that share a key head stand where a call expects more queries.

    Shapes: queries is (n, n_heads, dim), keys (n, n_tokens, n_kv_heads, dim), values (n, n_tokens, n_kv_heads,
            value_dim), mask (n, 1, 1, n_tokens); returns (n, n_heads, value_dim).
    """
    n, n_heads, _ = queries.shape
    n_kv_heads = keys.shape[2]
    folded = queries.view(n, n_kv_heads, n_heads // n_kv_heads, -1)
    result = scaled_dot_product_attention(
        folded, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, scale=scale
    )
    return result.reshape(n, n_heads, -1)


def attend_parts(
    query: torch.Tensor, parts: Iterable[tuple[torch.Tensor, torch.Tensor]], *, scale: float
) -> torch.Tensor:
    """One query over keys and values that come in parts, each weighed by its share of the softmax; on the CPU.

    Shapes: query is (1, n_heads, dim); each part's keys and values are (n_tokens, n_kv_heads, dim); returns
            (1, n_heads, dim).
    """
    results, log_sums = [], []
    for keys, values in parts:
        n_kv_heads = keys.shape[1]
        folded = query.view(1, n_kv_heads, -1, query.shape[2])
        # What scaled_dot_product_attention comes down to on the CPU; only this form also returns the sums.
        result, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            folded, keys.transpose(0, 1)[None], values.transpose(0, 1)[None], scale=scale
        )
        results.append(result)
        log_sums.append(log_sum)
    shares = torch.stack(log_sums).softmax(0)[..., None]
    merged: torch.Tensor = (torch.stack(results) * shares).sum(0)
    return merged.reshape(query.shape).to(query.dtype)
