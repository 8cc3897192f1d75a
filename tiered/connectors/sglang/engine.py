"""The parts of SGLang's objects that the backend uses, as protocols: no SGLang is imported for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch


class StorageConfig(Protocol):
    """``HiCacheStorageConfig``: which rank this is, and of which model.

    is_mla_model: really that every tensor-parallel rank holds the same KV.
    """

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    attn_cp_rank: int
    attn_cp_size: int
    is_mla_model: bool
    model_name: str | None
    extra_config: Mapping[str, Any] | None


class HostPool(Protocol):
    """``HostKVCache``: pages of KV in host memory. Kinds of pools add ``head_num`` and ``head_dim``, or
    ``kv_cache_dim`` where one latent stands for both planes."""

    layout: str
    page_size: int
    dtype: torch.dtype
    layer_num: int

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[Sequence[int], Sequence[int] | int]:
        """Addresses and sizes of the buffers of each page; indices: of its tokens."""

    def get_dummy_flat_data_page(self) -> torch.Tensor: ...


class ExtraInfo(Protocol):
    """``HiCacheStorageExtraInfo``. prefix_keys: of the pages before the call's, from the first of the sequence on;
    absent unless ``hicache_storage_pass_prefix_keys`` is set, and where there are none."""

    prefix_keys: Sequence[str] | None
