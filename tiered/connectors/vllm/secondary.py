"""vLLM's secondary tier of the native offloading connector, on the Redis tier: the one module here that knows vLLM's.

Translates vLLM's calls, keys and results, and owns nothing else: what is looked up, moved and remembered is
:class:`~tiered.connectors.vllm.secondary_store.SecondaryStore`'s. vLLM loads it by ``"type": "RedisSecondaryTier"``
and ``"module_path": "tiered.connectors.vllm.secondary"``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Final

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tiered.connectors.vllm.asks import tenant_named
from tiered.connectors.vllm.secondary_identity import EngineFacts, Group, group_of, identity_of
from tiered.connectors.vllm.secondary_lookups import Answer
from tiered.connectors.vllm.secondary_metrics import METRICS, Kind, samples
from tiered.connectors.vllm.secondary_settings import read_settings
from tiered.connectors.vllm.secondary_store import Chunk, JobDone, SecondaryStore, StoreCounters
from tiered.log import get_logger
from tiered.types import TenantId

_RESULTS: Final = {
    Answer.HIT: LookupResult.HIT,
    Answer.MISS: LookupResult.MISS,
    Answer.RETRY: LookupResult.RETRY,
}

_log = get_logger("tiered.vllm")
_vllm_log = init_logger("vllm.tiered")
"""For what an operator is to see at the start: vLLM shows what is below its own name only."""


@dataclass(slots=True)
class _Request:
    """What is known of a request, kept in vLLM's own scratch space for it. n_seen: of its keys' positions."""

    tenant: TenantId | None
    chains: dict[int, list[bytes]] = field(default_factory=dict)
    n_seen: int = 0


class RedisSecondaryTier(SecondaryTierManager):
    """Chunks in Redis, within their tenants' quotas, verified before they are used."""

    medium: ClassVar[Medium | None] = Medium.STORAGE
    cache_hit_source: ClassVar[CacheHitSource] = CacheHitSource.EXTERNAL_UNSPECIFIED

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        **config: Any,
    ) -> None:
        """Errors: ConfigError naming the setting and the fix; vLLM then does not start."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        settings = read_settings(config)
        self.locality = Locality(settings.tier.locality)
        identity = identity_of(
            facts_of(offloading_spec, chunk_bytes=self.block_size_bytes),
            weights_version=settings.tier.weights_version,
            model=settings.tier.model,
        )
        self._tokens_per_chunk = identity.tokens_per_chunk
        self._default_tenant = TenantId(settings.tier.tenant)
        self._store = SecondaryStore(settings, identity, primary_kv_view)
        self._loading: dict[int, Sequence[OffloadKey]] = {}
        self._published: StoreCounters | None = None
        self._has_warned = False
        _vllm_log.info("Chunks of %s are kept in Redis (%s)", identity.scope.model, identity.layout.describe())

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self._store.begin_request(req_context.req_id)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._store.end_request(req_context.req_id)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return _RESULTS[self._store.lookup(key, req_context.req_id, self._request(req_context).tenant)]

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._store.end_pass()

    def submit_store(self, job_metadata: TransferJob) -> None:
        request = self._seen(job_metadata.req_context)
        self._store.store(
            job_metadata.job_id,
            job_metadata.req_context.req_id,
            request.tenant,
            self._chunks(list(job_metadata.keys), job_metadata.chunk_ids.tolist(), job_metadata.req_context),
            request.chains,
        )

    def submit_load(self, job_metadata: TransferJob) -> None:
        request, keys = self._seen(job_metadata.req_context), list(job_metadata.keys)
        self._loading[job_metadata.job_id] = keys
        self._store.load(
            job_metadata.job_id,
            job_metadata.req_context.req_id,
            request.tenant,
            self._chunks(keys, job_metadata.chunk_ids.tolist(), job_metadata.req_context),
            request.chains,
        )

    def get_finished_jobs(self) -> Iterable[JobResult]:
        return [self._result(done) for done in self._store.finished()]

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        listed = list(keys)
        self._store.used(self._request(req_context).tenant, self._chunks(listed, [0] * len(listed), req_context))

    def drain_jobs(self) -> None:
        self._store.drain()

    def shutdown(self) -> None:
        self._store.close()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        kinds = {Kind.COUNTER: OffloadingCounterMetadata, Kind.GAUGE: OffloadingGaugeMetadata}
        return {m.name: kinds[m.kind](documentation=m.says, labelnames=m.labels) for m in METRICS}

    def get_stats(self) -> OffloadingConnectorStats | None:
        counters = self._store.counters()
        stats = OffloadingConnectorStats()
        for sample in samples(self._published, counters):
            if sample.metric.kind is Kind.GAUGE:
                stats.set_gauge(sample.metric.name, sample.value, sample.labels)
            else:
                stats.increase_counter(sample.metric.name, sample.value, sample.labels)
        self._published = counters
        return stats

    def _result(self, done: JobDone) -> JobResult:
        keys = self._loading.pop(done.job_id, ())
        is_whole = all(done.good)
        some = [key for key, good in zip(keys, done.good, strict=bool(keys)) if good]
        return JobResult(
            job_id=done.job_id,
            success=is_whole,
            successful_keys=some if some and not is_whole else None,
            transfer_time=done.took_s,
            transfer_bytes=done.n_bytes,
        )

    def _chunks(self, keys: Sequence[OffloadKey], rows: Sequence[int], context: ReqContext) -> list[Chunk]:
        return [Chunk(key, self._depth(key, context), row) for key, row in zip(keys, rows, strict=True)]

    def _depth(self, key: OffloadKey, context: ReqContext) -> int:
        """A key's position is where its chunk ends; the last chunk of a prompt may end early."""
        end = context.get_offload_key_position(key) or 0
        return max(0, -(-end // self._tokens_per_chunk.get(group_of(key), 1)) - 1)

    def _request(self, context: ReqContext) -> _Request:
        request: _Request | None = context.get_state(_Request)
        if request is None:
            request = _Request(self._tenant(context))
            context.set_state(request)
        return request

    def _seen(self, context: ReqContext) -> _Request:
        """The request, with the chains of all keys that vLLM has named so far; each key is looked at once."""
        request = self._request(context)
        # vLLM has no public way to list a request's keys. Without them a chunk's parent is unknown, which costs order
        # among what leaves Redis first, and nothing else.
        positions = getattr(context, "_offload_key_positions", {})
        for key, end in islice(positions.items(), request.n_seen, None):
            chain = request.chains.setdefault(group_of(key), [])
            if end == (len(chain) + 1) * self._tokens_per_chunk.get(group_of(key), 0):
                chain.append(key)
        request.n_seen = len(positions)
        return request

    def _tenant(self, context: ReqContext) -> TenantId | None:
        """None, which may use nothing, for a name that none can have: it is nobody else's to pay for."""
        try:
            return tenant_named(context.kv_transfer_params) or self._default_tenant
        except ValueError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("requests with a bad tenant name are not cached", reason=str(error))
            return None


def facts_of(spec: OffloadingSpec, *, chunk_bytes: int) -> EngineFacts:
    config = spec.config
    return EngineFacts(
        engine_version=vllm.__version__,
        model=config.model.name,
        dtype=config.model.dtype,
        order=config.kv_cache_layout or "",
        groups=tuple(Group(g.group_id, g.tokens_per_block, tuple(g.layer_names)) for g in config.groups),
        tokens_per_hash=config.cache.tokens_per_hash,
        blocks_per_chunk=config.cache.blocks_per_chunk,
        rank_bytes_per_block=config.worker_kv_bytes_per_block,
        chunk_bytes=chunk_bytes,
        world_size=config.parallel.world_size,
        tp_size=config.parallel.tp_size,
        pp_size=config.parallel.pp_size,
        pcp_size=config.parallel.pcp_size,
        dcp_size=config.parallel.dcp_size,
        is_replicated=bool(spec.replicated_layout),
        is_canonical=config.canonical_layout,
    )
