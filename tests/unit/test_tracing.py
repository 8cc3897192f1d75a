"""Tracing: nothing while it is off, and one trace over processes while it is on."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pydantic import ValidationError

from tests.support.spans import exported_spans
from tiered import tracing
from tiered.errors import ConfigError
from tiered.tracing import TracingSettings, here, span


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    with exported_spans() as exporter:
        yield exporter


def test_while_it_is_off_a_span_is_a_constant_and_has_no_name() -> None:
    assert span("a", n=1) is span("b", parent="00-x")
    with span("a") as nothing:
        nothing.say(n=2)
        assert (nothing.name_to_others, here()) == ("", "")


def test_spans_within_each_other_are_one_trace_and_say_what_was_said(exported: InMemorySpanExporter) -> None:
    with span("outer", tenant="acme") as outer:
        assert here() == outer.name_to_others != ""
        with span("inner") as inner:
            inner.say(n_blocks=3)
    assert here() == ""
    one, other = exported.get_finished_spans()
    assert (one.name, other.name) == ("inner", "outer")
    assert one.context.trace_id == other.context.trace_id
    assert one.parent is not None
    assert one.parent.span_id == other.context.span_id
    assert dict(one.attributes or {}) == {"tiered.n_blocks": 3}
    assert dict(other.attributes or {}) == {"tiered.tenant": "acme"}


def test_a_span_named_by_another_process_is_the_parent(exported: InMemorySpanExporter) -> None:
    with span("theirs") as theirs:
        name = theirs.name_to_others
    with span("unrelated"), span("ours", parent=name):
        pass
    spans = {each.name: each for each in exported.get_finished_spans()}
    assert spans["ours"].context.trace_id == spans["theirs"].context.trace_id
    assert spans["ours"].context.trace_id != spans["unrelated"].context.trace_id
    parent = spans["ours"].parent
    assert parent is not None
    assert parent.is_remote


@pytest.mark.parametrize("nonsense", ["x", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\0" * 99])
def test_a_parent_that_makes_no_sense_begins_a_trace_of_its_own(
    exported: InMemorySpanExporter, nonsense: str
) -> None:
    with span("ours", parent=nonsense):
        pass
    [only] = exported.get_finished_spans()
    assert only.parent is None


def test_an_error_passes_and_is_in_the_span_by_its_type_alone(exported: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="prompt"), span("ours", tenant="acme"):
        raise ValueError("prompt 1 2 3")
    [only] = exported.get_finished_spans()
    assert only.status.status_code is StatusCode.ERROR
    assert dict(only.attributes or {}) == {"tiered.tenant": "acme", "error.type": "ValueError"}
    assert only.events == ()
    assert "1 2 3" not in only.to_json()


def test_missing_packages_are_said_with_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    settings = TracingSettings(endpoint="http://127.0.0.1:4318/v1/traces")
    with pytest.raises(ConfigError, match=r"tracing.endpoint: opentelemetry.sdk.trace is not installed; pip install"):
        tracing.start(settings, service="tiered-worker", instance="w1")


def test_without_an_endpoint_nothing_is_started() -> None:
    exporting = tracing.start(TracingSettings(), service="tiered-worker", instance="w1")
    assert here() == ""
    exporting.stop()


def test_what_is_traced_is_sent_off_when_the_service_stops_even_if_nobody_takes_it() -> None:
    settings = TracingSettings(endpoint="http://127.0.0.1:9/v1/traces")
    exporting = tracing.start(settings, service="tiered-worker", instance="w1")
    with span("ours"):
        assert here() != ""
    exporting.stop()
    assert here() == ""


@pytest.mark.parametrize("endpoint", ["collector:4317", "grpc://collector", "http://"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="write the collector's URL"):
        TracingSettings(endpoint=endpoint)
