"""The bytes of sequences that clients drive over the socket: written into the pool, attended to, returned.

Runs in threads, over blocks that its caller has pinned; knows shapes and refuses to know sequences, tenants, loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tiered.attention import PagedBatch, paged_attention, write_kv
from tiered.client.saving import block_checksum
from tiered.pool.pool import BlockPool, torch_dtype
from tiered.sequence.sequence import BlockCopy
from tiered.types import BlockId


@dataclass(frozen=True, slots=True)
class Writing:
    """Tokens on their way into the pool.

    slots:   of the tokens to write, which are the last of those in ``keys_values``.
    whole:   blocks that are full afterwards.
    """

    copy: BlockCopy | None
    slots: Sequence[int]
    keys_values: bytes
    n_tokens: int
    whole: Sequence[BlockId]


@dataclass(frozen=True, slots=True)
class Query:
    """One batch of queries, as in :class:`tiered.wire.messages.Attend`, with the sequences' blocks."""

    block_tables: Sequence[Sequence[BlockId]]
    seq_lens: Sequence[int]
    query_lens: Sequence[int]
    layer: int
    n_heads: int
    queries: bytes
    scale: float | None
    latent_dim: int | None


def write_tokens(pool: BlockPool, writing: Writing) -> list[bytes | None]:
    """Make the copy, write the tokens in all layers, and return the checksums of the whole blocks."""
    layout, n_skipped = pool.layout, writing.n_tokens - len(writing.slots)
    if writing.copy is not None:
        pool.copy_tokens(writing.copy.source, writing.copy.target, writing.copy.n_tokens)
    if writing.slots:
        shape = (layout.n_layers, layout.n_planes, writing.n_tokens, layout.n_kv_heads, layout.head_dim)
        new = _tensor(pool, writing.keys_values).view(shape)[:, :, n_skipped:].to(pool.device)
        slots = torch.tensor(writing.slots, device=pool.device)
        for layer in range(layout.n_layers):
            planes = new[layer]
            write_kv(pool.tensor, layer, slots, planes[0], planes[1] if layout.n_planes == 2 else None)
        _finish(pool)
    return [block_checksum(pool, block_id) for block_id in writing.whole]


def attend(pool: BlockPool, query: Query) -> bytes:
    """The outputs' bytes. Errors: ValueError for what does not fit the pool or the sequences."""
    head_dim, n_queries = pool.layout.head_dim, sum(query.query_lens)
    expected = n_queries * query.n_heads * head_dim * pool.tensor.element_size()
    if query.n_heads < 1 or len(query.queries) != expected:
        raise ValueError(
            f"queries: {len(query.queries)} bytes, not {expected}: their shape is ({n_queries}, {query.n_heads}, "
            f"{head_dim}), {pool.layout.dtype}"
        )
    if not n_queries:
        return b""
    width = max(1, *(len(table) for table in query.block_tables))
    table = torch.full((len(query.block_tables), width), -1)
    for row, block_ids in enumerate(query.block_tables):
        table[row, : len(block_ids)] = torch.tensor(block_ids)
    seq_lens, query_lens = torch.tensor(query.seq_lens), torch.tensor(query.query_lens)
    batch = PagedBatch(
        table.to(pool.device),
        seq_lens.to(pool.device),
        query_lens.to(pool.device),
        query_len_max=max(query.query_lens),
    )
    queries = _tensor(pool, query.queries).view(n_queries, query.n_heads, head_dim).to(pool.device)
    outputs = paged_attention(
        queries, pool.tensor, query.layer, batch, scale=query.scale, latent_dim=query.latent_dim
    )
    return outputs.contiguous().cpu().view(torch.uint8).numpy().tobytes()


def _tensor(pool: BlockPool, data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch_dtype(pool.layout))


def _finish(pool: BlockPool) -> None:
    """What was written can be read by any stream, and by another process, from now on."""
    if pool.tensor.is_cuda:
        torch.cuda.current_stream(pool.tensor.device).synchronize()
