"""TieredLayer: one layer of a TieredCache, as transformers' models and masks call it.

Owns what a layer shows of the columns there are: all of them, or those its window reaches. Refuses to know rows.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers.cache_utils import CacheLayerMixin

from tiered.connectors.transformers.step import Step


class Keeper(Protocol):
    """The cache that all layers belong to."""

    @property
    def in_place(self) -> bool:
        """Whether attention takes layers in place of keys."""

    @property
    def columns(self) -> int:
        """Those that every layer holds: what a forward writes counts when its last layer has written."""

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Step:
        """Keep a layer's part of the forward under way."""


class TieredLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's view of a cache. window: tokens that its attention sees, None for all."""

    is_croppable = True
    is_compileable = False

    def __init__(self, cache: Keeper, index: int, window: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache = cache
        self._index = index
        self.window = window
        self.is_sliding = window is not None
        self.is_initialized = True
        self._step: Step | None = None

    def update(  # type: ignore[override]  # see the docstring of dispatch
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor | TieredLayer, torch.Tensor]:
        """Shapes: key_states and value_states are (n_rows, n_kv_heads, n_columns, head_dim)."""
        self._step = self._cache.write(self._index, key_states, value_states)
        return (self, value_states) if self._cache.in_place else self.gather()

    def attend(self, queries: torch.Tensor, *, scale: float | None) -> torch.Tensor:
        assert self._step is not None
        return self._step.attend(queries, self._index, scale=scale)

    def gather(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert self._step is not None
        return self._step.gather(self._index, first_column=self._first_column(self._step.before))

    def _first_column(self, columns: int) -> int:
        """The first that the next token can see."""
        return 0 if self.window is None else max(0, columns - self.window + 1)

    def get_seq_length(self, *args: Any) -> int:
        return self._cache.columns

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Columns that attention sees with the next ``query_length``, and the first of them. Before transformers 5 it
        was the positions of the queries that were told."""
        n_queries = len(query_length) if isinstance(query_length, torch.Tensor) else query_length
        columns = self._cache.columns
        first = self._first_column(columns)
        return columns + n_queries - first, first

    def lazy_initialization(self, *args: Any) -> None:
        """All that is needed is there from the start."""
