"""The class that SGLang loads: ``module_path`` tiered.connectors.sglang.storage, ``class_name`` TieredHiCacheStorage.

Imports SGLang, so it can be imported only where that is installed. All that it does is said in ``backend``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from tiered.connectors.sglang.backend import Backend
from tiered.connectors.sglang.engine import ExtraInfo, HostPool, StorageConfig


class TieredHiCacheStorage(HiCacheStorage):
    """kwargs: what later versions may hand to a dynamic backend; nothing of it is needed.

    ``batch_exists_v2``, ``batch_get_v2`` and ``batch_set_v2`` are the base class's: SGLang calls them for models with
    more pools than the KV's, and those are refused when they register one.
    """

    def __init__(self, storage_config: StorageConfig, kwargs: Mapping[str, Any] | None = None) -> None:
        self.backend = Backend(storage_config)
        self._metrics_wanted = bool(getattr(storage_config, "enable_storage_metrics", False))
        self._is_complete = False

    def register_mem_pool_host(self, mem_pool_host: HostPool) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self.backend.register(mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: HostPool, host_pool_name: str) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if self._is_complete:  # a draft model's pool comes after all others, and nothing is called after it
            self.backend.require_one_pool([str(host_pool_name)])

    def on_host_pools_registered(self) -> None:
        self._is_complete = True
        self.backend.require_one_pool([str(name) for name in getattr(self, "registered_pools", ())])

    def exists(self, key: str) -> bool:
        return self.backend.exists(key)

    def batch_exists(self, keys: list[str], extra_info: ExtraInfo | None = None) -> int:
        return self.backend.batch_exists(keys, extra_info)

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: ExtraInfo | None = None
    ) -> list[bool]:
        return self.backend.batch_get_v1(keys, host_indices, extra_info)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: ExtraInfo | None = None
    ) -> list[bool]:
        return self.backend.batch_set_v1(keys, host_indices, extra_info)

    def get(
        self, key: str, target_location: torch.Tensor | None = None, target_sizes: object = None
    ) -> torch.Tensor | None:
        return self.backend.get(key, target_location)

    def batch_get(
        self, keys: list[str], target_locations: Sequence[torch.Tensor] | None = None, target_sizes: object = None
    ) -> list[torch.Tensor | None]:
        return self.backend.batch_get(keys, target_locations)

    def set(
        self, key: str, value: torch.Tensor | None = None, target_location: object = None, target_sizes: object = None
    ) -> bool:
        return self.backend.set(key, value)

    def batch_set(
        self,
        keys: list[str],
        values: Sequence[torch.Tensor] | None = None,
        target_locations: object = None,
        target_sizes: object = None,
    ) -> bool:
        return self.backend.batch_set(keys, values)

    def clear(self) -> None:
        self.backend.clear()

    def get_stats(self) -> Any:
        """``StorageMetrics`` since the last call; None where nobody wants them."""
        if not self._metrics_wanted:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        reads, writes = self.backend.moved()
        return StorageMetrics(
            prefetch_pgs=reads.pages,
            backup_pgs=writes.pages,
            prefetch_bandwidth=reads.rates,
            backup_bandwidth=writes.rates,
        )

    def close(self) -> None:
        self.backend.close()
