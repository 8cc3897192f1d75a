"""What the server counts, as Prometheus families. No label comes from a request: series are bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tiered.metrics.series import build_info
from tiered.metrics.serving import SERVING
from tiered.types import Source

COMPUTED: Final = "computed"

_TTFT_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_S: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)

GONE_STATUS: Final = 499
"""Of a request whose client went away: what proxies call it."""


disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody reads


class _Build(Collector):
    def collect(self) -> list[Metric]:
        return [build_info(SERVING)]


class Metrics:
    """Of one server; a registry of its own, so that tests may have several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Build())
        self._requests = Counter(
            "tiered_serve_requests",
            f"Requests by endpoint and HTTP status; {GONE_STATUS}: the client went away",
            ("endpoint", "status"),
            registry=self.registry,
        )
        self._prompt_tokens = Counter(
            "tiered_serve_prompt_tokens",
            "Prompt tokens by where their KV was found; computed: nowhere",
            ("source",),
            registry=self.registry,
        )
        for source in (*Source, COMPUTED):
            self._prompt_tokens.labels(str(source))
        self.completion_tokens = Counter("tiered_serve_completion_tokens", "Tokens generated", registry=self.registry)
        self.queue_s = Histogram(
            "tiered_serve_queue_seconds", "How long requests waited", buckets=_TTFT_S, registry=self.registry
        )
        self.ttft_s = Histogram(
            "tiered_serve_time_to_first_token_seconds",
            "From the request to its first token, waiting included",
            buckets=_TTFT_S,
            registry=self.registry,
        )
        self.token_s = Histogram(
            "tiered_serve_time_per_token_seconds",
            "Between two tokens of one answer",
            buckets=_TOKEN_S,
            registry=self.registry,
        )

    def count_request(self, endpoint: str, status: int) -> None:
        self._requests.labels(endpoint, str(status)).inc()

    def count_prompt(self, n_tokens: int, hit_tokens: Mapping[Source, int]) -> None:
        for source, n_hit in hit_tokens.items():
            self._prompt_tokens.labels(str(source)).inc(n_hit)
        self._prompt_tokens.labels(COMPUTED).inc(n_tokens - sum(hit_tokens.values()))

    def show(self, name: str, what: str, value: Callable[[], float]) -> None:
        """A gauge that is asked for when somebody looks."""
        Gauge(f"tiered_serve_{name}", what, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self.registry)
