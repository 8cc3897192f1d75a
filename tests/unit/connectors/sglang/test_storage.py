"""The class that SGLang loads, on SGLang's own base class where it is installed, else on a restatement of it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from tests.support.hicache import HiCacheConfig, HostPool, fill, page_keys, right_page, same_bits, wrong_pages
from tests.unit.connectors.sglang.builders import Bench, bench
from tiered.errors import ConfigError


class RestatedStorage(ABC):
    """``HiCacheStorage`` of 0.5.23: what must be there, and what the controller relies on."""

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        if not hasattr(self, "registered_pools"):
            self.registered_pools: dict[Any, Any] = {}
        self.registered_pools[host_pool_name] = host_pool

    @abstractmethod
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any: ...

    @abstractmethod
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any: ...

    @abstractmethod
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool: ...

    @abstractmethod
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool: ...

    @abstractmethod
    def exists(self, key: str) -> bool: ...


@dataclass
class RestatedMetrics:
    """``StorageMetrics``."""

    prefetch_pgs: list[int] = field(default_factory=list)
    backup_pgs: list[int] = field(default_factory=list)
    prefetch_bandwidth: list[float] = field(default_factory=list)
    backup_bandwidth: list[float] = field(default_factory=list)


@pytest.fixture
def storage_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    if importlib.util.find_spec("sglang") is None:
        for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.observability"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        base = ModuleType("sglang.srt.mem_cache.hicache_storage")
        base.HiCacheStorage = RestatedStorage  # type: ignore[attr-defined]
        metrics = ModuleType("sglang.srt.observability.metrics_collector")
        metrics.StorageMetrics = RestatedMetrics  # type: ignore[attr-defined]
        for module in (base, metrics):
            monkeypatch.setitem(sys.modules, module.__name__, module)
    yield importlib.import_module("tiered.connectors.sglang.storage")
    sys.modules.pop("tiered.connectors.sglang.storage", None)


@pytest.fixture
def made() -> Iterator[Bench]:
    with bench() as each:
        yield each


@pytest.fixture
def storage(storage_module: ModuleType, made: Bench, monkeypatch: pytest.MonkeyPatch) -> Any:
    subject = storage_module.Backend
    monkeypatch.setattr(storage_module, "Backend", lambda config: subject(config, attach=made.attach))
    return storage_module.TieredHiCacheStorage(HiCacheConfig(enable_storage_metrics=True), {})


def test_it_is_loaded_and_attached_as_the_factory_and_the_controller_do(storage: Any) -> None:
    pool, keys = HostPool(), page_keys("p", 5)
    storage.register_mem_pool_host(pool)
    storage.register_mem_host_pool_v2(pool, "kv")
    storage.on_host_pools_registered()
    assert storage.mem_pool_host is pool
    indices = pool.take(5)
    fill(pool, indices, keys)
    assert all(storage.batch_set_v1(keys, indices, None))
    pool.kv_buffer.zero_()
    assert storage.batch_exists(keys, None) == 5
    assert storage.batch_get_v1(keys, indices, None) == [True] * 5
    assert wrong_pages(pool, indices, keys) == []
    (page,) = storage.batch_get(keys[:1], [pool.get_dummy_flat_data_page()])
    assert same_bits(page, right_page(pool, keys[0]))
    assert storage.exists(keys[0])
    assert storage.get(keys[0], pool.get_dummy_flat_data_page()) is not None
    assert storage.batch_set(page_keys("q", 1), [right_page(pool, "q")])
    assert storage.set(page_keys("r", 1)[0], right_page(pool, "r"))
    stats = storage.get_stats()
    assert (stats.prefetch_pgs, stats.backup_pgs) == ([5, 1, 1], [5, 1, 1])
    assert len(stats.prefetch_bandwidth) == len(stats.backup_bandwidth) == 3
    assert storage.get_stats().prefetch_pgs == []
    storage.clear()
    assert storage.batch_exists(keys) == 0
    storage.close()
    assert storage.batch_exists(keys) == 0


def test_a_model_with_side_pools_is_refused_when_all_are_known(storage: Any) -> None:
    pool = HostPool()
    storage.register_mem_pool_host(pool)
    storage.register_mem_host_pool_v2(pool, "indexer")
    with pytest.raises(ConfigError, match="keeps indexer beside its KV"):
        storage.on_host_pools_registered()


def test_a_draft_models_pool_that_comes_last_is_refused_too(storage: Any) -> None:
    pool = HostPool()
    storage.register_mem_pool_host(pool)
    storage.register_mem_host_pool_v2(pool, "kv")
    storage.on_host_pools_registered()
    storage.register_mem_host_pool_v2(pool, "kv")
    with pytest.raises(ConfigError, match="keeps draft beside its KV"):
        storage.register_mem_host_pool_v2(pool, "draft")


def test_nobody_who_wants_no_metrics_gets_any(storage_module: ModuleType) -> None:
    assert storage_module.TieredHiCacheStorage(HiCacheConfig(), {}).get_stats() is None


def test_a_bad_setting_stops_the_attach(storage_module: ModuleType) -> None:
    with pytest.raises(ConfigError, match="tennant: unknown setting"):
        storage_module.TieredHiCacheStorage(HiCacheConfig(extra_config={"tennant": "x"}), {})
