"""The engine's thread by itself: what is traced of an answer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.support.served import ScriptedGenerator, scripted_model
from tests.support.spans import exported_spans
from tests.support.worker_process import until
from tiered.connectors.transformers.steering import Abandoned
from tiered.serving.answer import Event, Failed, Job, Trouble
from tiered.serving.engine import Engine
from tiered.serving.metrics import Metrics
from tiered.serving.sampling import Sampling
from tiered.types import TenantId


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    with exported_spans() as exporter:
        yield exporter


@pytest.mark.parametrize(
    ("raised", "status", "told"),
    [
        (Abandoned(), StatusCode.UNSET, []),
        (RuntimeError("prompt 1 2 3"), StatusCode.ERROR, [Failed(Trouble.BUG)]),
    ],
)
def test_an_answer_that_nobody_waits_for_is_no_error_and_one_that_fails_is(
    exported: InMemorySpanExporter, raised: Exception, status: StatusCode, told: list[Event]
) -> None:
    events: list[Event] = []
    engine = Engine(lambda: scripted_model(ScriptedGenerator(failing=raised)), Metrics(), queue_max=4)
    engine.start(lambda error: None)
    job = Job(TenantId("acme"), [1, 2, 3], 5, Sampling(), (), events.append, time.monotonic())
    assert engine.submit([job])
    until(lambda: exported.get_finished_spans() and not engine.busy, "the answer is over")
    engine.stop()
    assert engine.join(30.0)
    [only] = exported.get_finished_spans()
    assert (only.name, only.status.status_code, events) == ("serve.answer", status, told)
    assert "1 2 3" not in only.to_json()
