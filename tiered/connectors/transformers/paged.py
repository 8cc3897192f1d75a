"""A transformers cache whose keys and values are blocks: a prefix read in place, new tokens in blocks of its own.

Owns the cache and the attention implementation that reads it, registered as ``tiered_paged``. Refuses to know how
long the prefix's blocks may be read: their pins are the generator's.

transformers gives a layer's new keys and values to the cache, and what the cache returns to the attention function,
without a look at it. PagedCache returns the layer itself, so that attention reads its blocks through their table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from tiered.attention import Run, run_attention, write_kv
from tiered.errors import BlockNotResident
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool, torch_dtype
from tiered.types import BlockId

IMPLEMENTATION: Final = "tiered_paged"


class PagedCache(Cache):
    """One sequence's KV. Use it as the model's cache within :func:`paged_attention_of`.

    capacity_tokens: of the whole sequence, the prefix included.
    prefix: a pool and its blocks of the sequence's first tokens, all full. They are read where they are, so they must
            stay pinned until :meth:`own_prefix`, or as long as the cache is used.
    """

    def __init__(
        self,
        layout: KvLayout,
        *,
        capacity_tokens: int,
        device: torch.device | str = "cpu",
        prefix: tuple[BlockPool, Sequence[BlockId]] | None = None,
    ) -> None:
        if layout.n_planes != 2:
            raise ValueError(f"layout.attention: {layout.attention!r} has no keys and values of its own; use gqa")
        self.layout = layout
        self.capacity_tokens = capacity_tokens
        self.prefix: Run | None = None
        if prefix is not None and prefix[1]:
            pool, block_ids = prefix
            ids = torch.tensor(block_ids, dtype=torch.int64, device=pool.device)
            self.prefix = Run(pool.tensor, ids, len(block_ids) * layout.block_tokens)
        if capacity_tokens < self.prefix_tokens:
            raise ValueError(f"capacity_tokens: {capacity_tokens} are fewer than the prefix's {self.prefix_tokens}")
        n_own_blocks = -(-(capacity_tokens - self.prefix_tokens) // layout.block_tokens)
        self.own = torch.empty((n_own_blocks, *layout.block_shape), dtype=torch_dtype(layout), device=device)
        if self.prefix is not None and self.prefix.pool.device != self.own.device:
            raise ValueError(
                f"prefix: blocks on {self.prefix.pool.device} cannot be read in place by a model on {self.own.device}"
            )
        super().__init__(layers=[PagedLayer(self, layer) for layer in range(layout.n_layers)])

    @property
    def prefix_tokens(self) -> int:
        return 0 if self.prefix is None else self.prefix.n_tokens

    def own_prefix(self) -> None:
        """Copy the prefix into blocks of the cache's own; its pins may end when this returns."""
        if self.prefix is not None:
            copied = self.prefix.pool.index_select(0, self.prefix.block_ids)
            self.own, self.prefix = torch.cat([copied, self.own]), None

    def fill(self, pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
        """Write blocks first_index, first_index + 1, ... of the sequence into slots of a pool, each copied whole.

        Errors: BlockNotResident for a block of the prefix. Whoever stores it anew found it gone, so what its place
                holds now may be anything.
        """
        start = first_index - self.prefix_tokens // self.layout.block_tokens
        if start < 0:
            raise BlockNotResident(f"block {first_index} of the sequence is of its prefix, only read in place")
        pool.scatter(block_ids, self.own[start : start + len(block_ids)])

    def runs(self, n_tokens: int) -> list[Run]:
        """Where the sequence's first ``n_tokens`` tokens lie."""
        n_own = n_tokens - self.prefix_tokens
        n_blocks = -(-n_own // self.layout.block_tokens)
        own = Run(self.own, torch.arange(n_blocks, device=self.own.device), n_own)
        return [own] if self.prefix is None else [self.prefix, own]


class PagedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's view of a PagedCache; counts the layer's tokens."""

    is_sliding = False

    def __init__(self, cache: PagedCache, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache = cache
        self._index = index
        self._n_tokens = cache.prefix_tokens

    def update(  # type: ignore[override]  # see the module's docstring
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[PagedLayer, torch.Tensor]:
        """Shapes: key_states and value_states are (1, n_kv_heads, n_tokens, head_dim)."""
        cache, first = self._cache, self._n_tokens - self._cache.prefix_tokens
        n_new = key_states.shape[2]
        if key_states.shape[0] != 1:
            raise ValueError(f"cache: it holds one sequence, and was given {key_states.shape[0]}")
        if self._n_tokens + n_new > cache.capacity_tokens:
            raise ValueError(f"cache: {self._n_tokens} + {n_new} tokens exceed its {cache.capacity_tokens}")
        slots = torch.arange(first, first + n_new, device=cache.own.device)
        write_kv(cache.own, self._index, slots, key_states[0].transpose(0, 1), value_states[0].transpose(0, 1))
        self._n_tokens += n_new
        return self, value_states

    def attend(self, queries: torch.Tensor, *, scale: float | None) -> torch.Tensor:
        """Shapes: queries is (n_queries, n_heads, head_dim), the layer's newest tokens; returns the same."""
        return run_attention(queries, self._cache.runs(self._n_tokens), self._index, scale=scale)

    def get_seq_length(self, *args: Any) -> int:
        return self._n_tokens

    def get_max_length(self) -> int:
        return self._cache.capacity_tokens

    get_max_cache_shape = get_max_length  # its name before transformers 5

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        return self._n_tokens + int(query_length), 0

    def lazy_initialization(self, *args: Any) -> None:
        """All memory is there from the start."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("a PagedCache holds one sequence that only grows")

    reset = reorder_cache = crop = batch_repeat_interleave = batch_select_indices = offload = _refuse


def attend_paged(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: PagedLayer,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls an attention implementation.

    Shapes: query is (1, n_heads, n_queries, head_dim); the result (1, n_queries, n_heads, head_dim).
    No mask function is registered under this name, so transformers builds no mask: one sequence has no padding, and
    causality is implied.
    """
    if not isinstance(key, PagedLayer):
        raise ValueError(f"attn_implementation: {IMPLEMENTATION!r} reads a PagedCache; pass one as the model's cache")
    if attention_mask is not None or dropout or kwargs.get("sliding_window") or kwargs.get("softcap"):
        raise ValueError(f"attn_implementation: {IMPLEMENTATION!r} is plain causal attention without dropout")
    return key.attend(query[0].transpose(0, 1), scale=scaling)[None], None


AttentionInterface.register(IMPLEMENTATION, attend_paged)


@contextmanager
def paged_attention_of(model: Any) -> Iterator[None]:
    """The model reads a PagedCache within the ``with``, and what it read before after it. One thread at a time."""
    before = model.config.get_text_config()._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
