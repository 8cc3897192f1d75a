"""One trace from an engine's match through its worker, a peer and Redis: what real processes send to a collector."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.content import TENANT, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered import tracing
from tiered.types import TenantId

N_BLOCKS = 6


class Collector:
    """Takes OTLP over HTTP. spans: (service instance, name, trace id, span id, parent's id, attributes)."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, bytes, bytes, bytes, dict[str, str]]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    raise AssertionError("compressed")
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for each in scope.spans:
                    said = {pair.key: str(pair.value) for pair in each.attributes}
                    names_it = (names["service.instance.id"], each.name)
                    self.spans.append((*names_it, each.trace_id, each.span_id, each.parent_span_id, said))

    def of(self, trace_id: bytes) -> set[tuple[str, str]]:
        return {(node, name) for node, name, trace, *_ in self.spans if trace == trace_id}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with closing(Collector()) as collector:
        yield collector


@pytest.fixture
def engine_spans() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.switch_on(provider)
    yield exporter
    tracing.switch_off()


def trace_of(spans: InMemorySpanExporter, name: str) -> bytes:
    [only] = {each.context.trace_id for each in spans.get_finished_spans() if each.name == name}
    return only.to_bytes(16, "big")


def test_a_prompt_that_a_peer_and_redis_have_is_one_trace_over_both_workers(
    cluster: SmallCluster, collector: Collector, engine_spans: InMemorySpanExporter
) -> None:
    cluster.start("w1", "w2", settings=[f"tracing.endpoint={collector.url}"])
    cluster.wait_acquainted()
    with cluster.attach("w1") as there, cluster.attach("w2") as here:
        save(there, prompt(1, N_BLOCKS))
        cluster.wait_announced("w1", N_BLOCKS)
        engine_spans.clear()
        assert sum(take(here, prompt(1, N_BLOCKS)).values()) == N_BLOCKS
    trace_id = trace_of(engine_spans, "tiered.match")
    assert trace_of(engine_spans, "tiered.load") == trace_id
    expected = {
        ("w2", "worker.match"),
        ("w2", "redis.lookup"),
        ("w2", "worker.load"),
        ("w2", "worker.fetch"),
        ("w1", "peer.lend"),
    }
    until(lambda: expected <= collector.of(trace_id), "both workers have sent their spans", within_s=20)
    ids = {span_id for _, _, trace, span_id, _, _ in collector.spans if trace == trace_id}
    ids |= {each.context.span_id.to_bytes(8, "big") for each in engine_spans.get_finished_spans()}
    orphans = [name for _, name, trace, _, parent, _ in collector.spans if trace == trace_id and parent not in ids]
    assert orphans == []


def test_what_only_redis_has_is_fetched_within_the_trace(
    cluster: SmallCluster, collector: Collector, engine_spans: InMemorySpanExporter
) -> None:
    [worker] = cluster.start("w1", settings=[f"tracing.endpoint={collector.url}"])
    with cluster.attach("w1") as client:
        save(client, prompt(1, N_BLOCKS))
        cluster.set_policy(TENANT, hot_limit_bytes=0)
        until(lambda: not cluster.blocks("w1")["ready"] + cluster.blocks("w1")["leaving"], "all has left")
        cluster.set_policy(TENANT, hot_limit_bytes=None)
        until(lambda: '"revision": 2' in worker.log, "the limit is gone")
        engine_spans.clear()
        assert sum(take(client, prompt(1, N_BLOCKS)).values()) == N_BLOCKS
    trace_id = trace_of(engine_spans, "tiered.match")
    until(lambda: ("w1", "redis.get") in collector.of(trace_id), "the read is in the trace", within_s=20)
    demoted = {name for _, name, trace, *_ in collector.spans if trace != trace_id}
    assert {"worker.demote", "redis.put"} <= demoted


def test_nothing_is_sent_unless_it_is_switched_on(cluster: SmallCluster, collector: Collector) -> None:
    cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, N_BLOCKS))
        take(client, prompt(1, N_BLOCKS))
    cluster.workers["w1"].stop()
    assert collector.spans == []


def test_a_collector_that_is_not_there_slows_nothing_and_stops_nobody(cluster: SmallCluster) -> None:
    cluster.start("w1", settings=["tracing.endpoint=http://127.0.0.1:9/v1/traces"])
    with cluster.attach("w1") as client:
        assert save(client, prompt(1, N_BLOCKS)).n_stored == N_BLOCKS
        assert sum(take(client, prompt(1, N_BLOCKS)).values()) == N_BLOCKS
    began = time.monotonic()
    cluster.workers["w1"].stop()
    assert time.monotonic() - began < 8.0


def test_spans_name_no_tokens_and_no_prompt(
    cluster: SmallCluster, collector: Collector, engine_spans: InMemorySpanExporter
) -> None:
    cluster.start("w1", settings=[f"tracing.endpoint={collector.url}"])
    tokens = [1_234_567 + n for n in range(len(prompt(1, N_BLOCKS)))]
    with cluster.attach("w1") as client:
        save(client, tokens, tenant=TenantId("acme"))
        take(client, tokens, tenant=TenantId("acme"))
    cluster.workers["w1"].stop()
    shown = repr(collector.spans) + repr([dict(each.attributes or {}) for each in engine_spans.get_finished_spans()])
    assert "acme" in shown
    assert "12345" not in shown
