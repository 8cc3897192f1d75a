"""TieredConnector: vLLM's interface of a KV connector, handed on to the side that this process is.

Loads are asynchronous and stores are never waited for, so the hooks of single layers do nothing and CUDA graphs stay
whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tiered.connectors.vllm.engine import engine_of
from tiered.connectors.vllm.metrics import TieredMetrics, TieredStats
from tiered.connectors.vllm.orders import Shard, StepOrders, StoreReport
from tiered.connectors.vllm.scheduler import SchedulerSide
from tiered.connectors.vllm.settings import read_settings
from tiered.connectors.vllm.worker import Rank, Seen, WorkerSide
from tiered.types import Source

_SOURCES: Final = {
    Source.HOT: CacheHitSource.HOST,
    Source.PEER: CacheHitSource.P2P,
    Source.REDIS: CacheHitSource.EXTERNAL_UNSPECIFIED,
}
"""In vLLM's words, which has none for a store of values on the network."""


@dataclass
class TieredMetadata(KVConnectorMetadata):
    """Of one step, from the scheduler to the workers."""

    orders: StepOrders = field(default_factory=StepOrders)


@dataclass
class TieredHandshake(KVConnectorHandshakeMetadata):
    """From each worker to the scheduler, once."""

    seen: Seen


@dataclass
class TieredReports(KVConnectorWorkerMetadata):
    """Of one step, from the workers to the scheduler."""

    reports: dict[Shard, list[StoreReport]]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> TieredReports:
        assert isinstance(other, TieredReports)
        shards = [*self.reports, *(shard for shard in other.reports if shard not in self.reports)]
        return TieredReports({shard: self.reports.get(shard, []) + other.reports.get(shard, []) for shard in shards})


class TieredConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = read_settings(self._kv_transfer_config.kv_connector_extra_config)
        engine = engine_of(vllm_config, kv_cache_config, settings)
        self._block_tokens = engine.block_tokens
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(engine, settings)
        else:
            self._worker = WorkerSide(engine, _rank(), settings, vllm_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """Nobody waits for what is stored."""
        return False

    # The workers' side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._at_worker.register(kv_caches)

    def get_handshake_metadata(self) -> TieredHandshake | None:
        seen = self._at_worker.seen
        return None if seen is None else TieredHandshake(seen)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """vLLM calls this before every step, preemptions or not: the moment before blocks change hands."""
        assert isinstance(kv_connector_metadata, TieredMetadata)
        self._at_worker.begin(kv_connector_metadata.orders)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begun in ``handle_preemptions``: loads go on beside the model."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded for the step that runs."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are stored whole, in a later step."""

    def wait_for_save(self) -> None:
        self._at_worker.forward_done()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        finished = self._at_worker.finished()
        return finished.sending, finished.receiving

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._at_worker.take_bad_blocks()

    def build_connector_worker_meta(self) -> TieredReports | None:
        reports = self._at_worker.take_reports()
        return TieredReports(reports) if reports else None

    # The scheduler's side.

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        ranks = {rank: told.seen for rank, told in metadata.items() if isinstance(told, TieredHandshake)}
        self._at_scheduler.meet(ranks)

    def on_new_request(self, request: Any) -> None:
        self._at_scheduler.arrived(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        found = self._at_scheduler.matched(request, num_computed_tokens)
        return found, bool(found)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._at_scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[CacheHitSource, int]:
        counts: Counter[CacheHitSource] = Counter()
        for source in self._at_scheduler.sources_of(request):
            counts[_SOURCES[source]] += self._block_tokens
        return dict(counts)

    def build_connector_meta(self, scheduler_output: Any) -> TieredMetadata:
        return TieredMetadata(self._at_scheduler.stepped(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        self._at_scheduler.received(
            connector_output.finished_recving or (), connector_output.invalid_block_ids or frozenset()
        )
        self._at_scheduler.sent(connector_output.finished_sending or ())
        told = connector_output.kv_connector_worker_meta
        if isinstance(told, TieredReports):
            self._at_scheduler.reported(told.reports)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._at_scheduler.finished(request, block_ids[0] if block_ids else ()), None

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._at_scheduler.finished(request, block_ids), None

    def has_pending_block_frees(self) -> bool:
        return self._at_scheduler.holds_blocks

    def reset_cache(self) -> bool:
        self._at_scheduler.reset()
        return True

    def take_events(self) -> Iterable[Any]:
        return self._at_scheduler.take_events()

    # Both sides.

    def get_kv_connector_stats(self) -> TieredStats | None:
        side = self._scheduler or self._worker
        assert side is not None
        taken = side.take_stats()
        return TieredStats(data=taken) if taken else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TieredStats:
        return TieredStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> TieredMetrics:
        return TieredMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()

    @property
    def _at_scheduler(self) -> SchedulerSide:
        assert self._scheduler is not None, "called in a worker's process"
        return self._scheduler

    @property
    def _at_worker(self) -> WorkerSide:
        assert self._worker is not None, "called in the scheduler's process"
        return self._worker


def _rank() -> Rank:
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    return Rank(tp_rank=get_tp_group().rank_in_group, pp_rank=get_pp_group().rank_in_group)
