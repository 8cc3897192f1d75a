"""The connector's counts in vLLM's words: its log line every few seconds, and its Prometheus metrics."""

from __future__ import annotations

from typing import Any, Final

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from tiered.connectors.vllm.tally import added

_COUNTERS: Final = {
    "hot_hit_tokens": "Prompt tokens loaded from the pool of the worker beside the engine",
    "peer_hit_tokens": "Prompt tokens that came from another node's pool",
    "redis_hit_tokens": "Prompt tokens that came from Redis",
    "lookups": "Requests that were looked up",
    "lookups_given_up": "Requests whose lookup took too long, and that were computed",
    "loads": "Requests with blocks to load",
    "load_blocks": "Blocks loaded",
    "load_bytes": "Bytes loaded",
    "load_failures": "Loads of which blocks did not come, and were computed",
    "load_failed_blocks": "Blocks that did not come, and were computed",
    "stores": "Pieces of requests stored",
    "store_blocks": "Blocks stored",
    "store_bytes": "Bytes stored",
    "stores_cut_short": "Stores that were refused in part or in whole",
    "stores_cancelled": "Stores that ended because vLLM took the blocks away",
    "stores_given_up": "Requests whose blocks were given back before all were stored",
    "stores_refused": "Stores beyond what may wait",
}
_HISTOGRAMS: Final = {
    "lookup_s": "Time until a lookup was answered, fetching included",
    "load_s": "Time to copy a request's blocks into vLLM's",
    "store_s": "Time to store a piece of a request",
}
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class TieredStats(KVConnectorStats):
    def reset(self) -> None:
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        return type(self)(data=added(self.data, other.data))

    def reduce(self) -> dict[str, int | float]:
        """Sums as they are, of durations the median in milliseconds."""
        reduced: dict[str, int | float] = {}
        for name, value in sorted(self.data.items()):
            if isinstance(value, list):
                reduced[f"{name.removesuffix('_s')}_ms"] = round(1e3 * sorted(value)[len(value) // 2], 2)
            else:
                reduced[name] = value
        return reduced

    def is_empty(self) -> bool:
        return not self.data


class TieredMetrics(KVConnectorPromMetrics):
    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter, histogram = metric_types[Counter], metric_types[Histogram]
        self._counters = {
            name: counter(name=f"vllm:tiered_{name}", documentation=text, labelnames=labelnames)
            for name, text in _COUNTERS.items()
        }
        self._histograms = {
            name: histogram(
                name=f"vllm:tiered_{name.removesuffix('_s')}_seconds",
                documentation=text,
                buckets=_BUCKETS,
                labelnames=labelnames,
            )
            for name, text in _HISTOGRAMS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name].labels(*labels).inc(value)
            elif name in self._histograms:
                histogram = self._histograms[name].labels(*labels)
                for seconds in value:
                    histogram.observe(seconds)
