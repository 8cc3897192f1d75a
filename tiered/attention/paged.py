"""Attention for a batch of sequences straight from their block tables.

Owns the contract and the choice of the path; refuses to know how blocks came to hold what they hold.

GQA: a pool of two planes, keys and values; n_heads is a multiple of n_kv_heads, and query head h reads key head
``h // (n_heads / n_kv_heads)``. MLA: a pool of one plane, the latent, its compressed part first and its rotary part
after it. Queries come absorbed, as long as the latent; the latent is the key, its first ``latent_dim`` elements are
the value, and the caller projects the result up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from tiered.attention.batch import PagedBatch
from tiered.attention.kernels import attend_decodes, attend_parts, attend_sequence
from tiered.attention.padded import attend_padded
from tiered.attention.plan import DecodeGroup, LongDecode


def paged_attention(
    queries: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    batch: PagedBatch,
    *,
    scale: float | None = None,
    latent_dim: int | None = None,
) -> torch.Tensor:
    """Causal attention of every query over its sequence up to its own position.

    Shapes: queries is (total_queries, n_heads, head_dim), packed as the batch says, pool dtype.
            pool is (n_blocks, n_layers, n_planes, block_tokens, n_kv_heads, head_dim), contiguous: BlockPool.tensor.
            Returns (total_queries, n_heads, head_dim), or (total_queries, n_heads, latent_dim) for MLA, pool dtype.
    scale:  of the scores; head_dim ** -0.5 if None. MLA must name it: absorbed queries are longer than the heads that
            the scale is made for.
    Errors: ValueError for shapes, dtypes, or, on the CPU, lengths that do not fit.
    Cost:   memory for a few sequences' keys and values of one layer at a time, in the pool's dtype. On CUDA no host
            sync: shapes follow from the tensors' shapes and query_len_max, lengths only from masks; those that do not
            fit are not noticed there.
    """
    scale = check_attention(queries, pool, layer, scale=scale, latent_dim=latent_dim)
    if pool.device.type != "cpu":
        return attend_padded(queries, pool, layer, batch, scale=scale, latent_dim=latent_dim)
    return _attend_on_host(queries, pool, layer, batch, scale=scale, latent_dim=latent_dim)


def check_attention(
    queries: torch.Tensor, pool: torch.Tensor, layer: int, *, scale: float | None, latent_dim: int | None
) -> float:
    """The scale to use. Errors: ValueError for what does not fit together."""
    check_pool(pool, layer)
    n_planes, _, n_kv_heads, head_dim = pool.shape[2:]
    if queries.dim() != 3 or queries.shape[2] != head_dim or queries.shape[1] % n_kv_heads:
        raise ValueError(
            f"queries: their shape is {tuple(queries.shape)}, not (total_queries, n_heads, {head_dim}) with n_heads "
            f"a multiple of {n_kv_heads}"
        )
    if queries.dtype is not pool.dtype or pool.element_size() == 1:
        raise ValueError(f"queries: {queries.dtype} over a pool of {pool.dtype}; both must be the same float type")
    if (latent_dim is None) != (n_planes == 2):
        raise ValueError(
            f"latent_dim: {latent_dim} for a pool of {n_planes} planes; give it for one plane, not for two"
        )
    if latent_dim is not None and not 1 <= latent_dim <= head_dim:
        raise ValueError(f"latent_dim: {latent_dim} is not between 1 and the latent's {head_dim}")
    if scale is not None:
        return scale
    if latent_dim is not None:
        raise ValueError("scale: an absorbed query is longer than the head its scale is made for; name the scale")
    return 1.0 / math.sqrt(head_dim)


def check_pool(pool: torch.Tensor, layer: int) -> None:
    if pool.dim() != 6 or pool.shape[2] not in (1, 2) or not pool.is_contiguous():
        raise ValueError(
            f"pool: its shape is {tuple(pool.shape)}, not a contiguous (n_blocks, n_layers, 1 or 2, block_tokens, "
            "n_kv_heads, head_dim)"
        )
    if not 0 <= layer < pool.shape[1]:
        raise ValueError(f"layer: {layer} is not one of the pool's {pool.shape[1]}")


def _attend_on_host(
    queries: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    batch: PagedBatch,
    *,
    scale: float,
    latent_dim: int | None,
) -> torch.Tensor:
    _, _, n_planes, block_tokens, n_kv_heads, head_dim = pool.shape
    token_bytes = n_planes * n_kv_heads * head_dim * pool.element_size()
    plan = batch.host_plan(block_tokens=block_tokens, token_bytes=token_bytes)
    if len(queries) != plan.n_queries:
        raise ValueError(f"queries: there are {len(queries)}, but query_lens sum to {plan.n_queries}")
    out = queries.new_empty((len(queries), queries.shape[1], latent_dim or head_dim))
    for group in plan.decodes:
        keys, values = _gather_group(pool, layer, group)
        picked = queries.index_select(0, group.query_rows)
        result = attend_decodes(picked, keys, values, mask=group.mask, scale=scale)
        out.index_copy_(0, group.query_rows, result[..., :latent_dim])
    for decode in plan.long_decodes:
        parts = _gather_parts(pool, layer, decode)
        query = queries[decode.query_row : decode.query_row + 1]
        out[decode.query_row] = attend_parts(query, parts, scale=scale)[0, :, :latent_dim]
    for chunk in plan.prefills:
        rows = slice(chunk.first_row, chunk.first_row + chunk.n_queries)
        keys, values = gather_planes(pool, layer, chunk.block_ids)
        n_tokens = chunk.n_tokens
        result = attend_sequence(queries[rows], keys[:n_tokens], values[:n_tokens], scale=scale)
        out[rows] = result[..., :latent_dim]
    return out


def gather_planes(pool: torch.Tensor, layer: int, block_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One layer's keys and values of blocks, one block after the other; the same tensor twice for a latent.

    Shapes: each is (n * block_tokens, n_kv_heads, head_dim). A latent is its own value as a whole, since kernels want
            keys and values of one width: the caller cuts the result, which costs less than cutting the values.
    """
    planes = [pool[:, layer, plane].index_select(0, block_ids).flatten(0, 1) for plane in range(pool.shape[2])]
    return planes[0], planes[-1]


def _gather_parts(pool: torch.Tensor, layer: int, decode: LongDecode) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each part when it is asked for, so that only one lies in the caches at a time."""
    left = decode.n_tokens
    for ids in decode.parts:
        keys, values = gather_planes(pool, layer, ids)
        yield keys[:left], values[:left]
        left -= len(keys)


def _gather_group(pool: torch.Tensor, layer: int, group: DecodeGroup) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = gather_planes(pool, layer, group.block_ids)
    if group.stale_rows is not None:
        keys.index_fill_(0, group.stale_rows, 0.0)
        values.index_fill_(0, group.stale_rows, 0.0)
    by_sequence = (len(group.query_rows), -1, *pool.shape[4:])
    return keys.view(by_sequence)[:, : group.n_tokens], values.view(by_sequence)[:, : group.n_tokens]
