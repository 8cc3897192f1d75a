"""KV between a transformers cache and the pool's blocks."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers import DynamicCache

from tiered.types import BlockId

if TYPE_CHECKING:
    from tiered.pool.pool import BlockPool


def cache_argument(model: Any) -> str:
    """What this version of transformers calls the cache in ``forward``: renamed in 5.x, the old name warns."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def cache_from_blocks(pool: BlockPool, block_ids: Sequence[BlockId], *, n_tokens: int) -> DynamicCache:
    """A cache that holds the first ``n_tokens`` tokens of a run of blocks, in memory of its own.

    Shapes: each layer's keys and values are (1, n_kv_heads, n_tokens, head_dim).
    """
    cache = DynamicCache()
    for layer in range(pool.layout.n_layers):
        keys, values = pool.gather_layer(block_ids, layer)[:, :, :n_tokens]
        cache.update(keys[None], values[None], layer)
    return cache


def blocks_from_cache(cache: DynamicCache, pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
    """Write blocks first_index, first_index + 1, ... of the sequence in ``cache`` into the pool's slots."""
    block_tokens = pool.layout.block_tokens
    start = first_index * block_tokens
    end = start + len(block_ids) * block_tokens
    for layer in range(pool.layout.n_layers):
        state: Any = cache.layers[layer]
        pool.scatter_layer(block_ids, layer, (state.keys[0, :, start:end], state.values[0, :, start:end]))
