"""Spans of OpenTelemetry where they are switched on, and nothing where they are not.

Owns the one tracer of this process and how a span is named to another process: by a W3C ``traceparent``, so that one
trace goes from an engine's match through its worker to a peer and to Redis. Off by default; a span then costs a call
that returns a constant. What is traced says no token and no prompt: names of tenants and nodes, counts, times, and of
an error its type alone, as its words may quote what was asked.
"""

from __future__ import annotations

import threading
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from tiered import __version__
from tiered.config import SettingsGroup
from tiered.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import StatusCode, Tracer, TracerProvider

Value = str | int | float | bool

STOP_S: Final = 2.0
"""For what is still to be sent when a service stops."""


class TracingSettings(SettingsGroup):
    endpoint: str = Field(default="", max_length=2_048)
    """Of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces; empty: no tracing."""
    sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """Of the traces that begin here; one that began elsewhere is followed if it was sampled there."""

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("write the collector's URL, such as http://127.0.0.1:4318/v1/traces")
        return value


class Span(Protocol):
    """One span, open within its ``with``. name_to_others is '' while nothing is traced."""

    name_to_others: str

    def say(self, **attributes: Value) -> None:
        """Further attributes, known only later."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def span(name: str, *, parent: str = "", **attributes: Value) -> Span:
    """A span below ``parent``, as another process or thread named it, or below the one that is open here."""
    return _NONE if _tracer is None else _Open(_tracer, name, parent, attributes)


def here() -> str:
    """The open span, as it is named to others; '' where there is none."""
    return "" if _tracer is None else _named()


def switch_on(provider: TracerProvider) -> None:
    global _tracer
    _tracer = provider.get_tracer("tiered", __version__)


def switch_off() -> None:
    global _tracer
    _tracer = None


class Exporter(Protocol):
    def stop(self) -> None:
        """Send what is left, within STOP_S."""


def start(settings: TracingSettings, *, service: str, instance: str) -> Exporter:
    """Trace this process as its settings say. Errors: ConfigError where the packages for it are missing."""
    if not settings.endpoint:
        return _Nothing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ImportError as error:
        raise ConfigError(
            f"tracing.endpoint: {error.name or 'opentelemetry'} is not installed; pip install 'tiered-kv[otel]', or "
            "leave tracing.endpoint empty",
            field="tracing.endpoint",
        ) from None
    names = {"service.name": service, "service.instance.id": instance, "service.version": __version__}
    provider = TracerProvider(
        resource=Resource.create(names),
        sampler=ParentBasedTraceIdRatio(settings.sample_ratio),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.endpoint)))
    switch_on(provider)
    return _Exporting(provider)


_tracer: Tracer | None = None


class _NoSpan:
    name_to_others = ""

    def say(self, **attributes: Value) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_NONE: Final = _NoSpan()


class _Open:
    def __init__(self, tracer: Tracer, name: str, parent: str, attributes: dict[str, Value]) -> None:
        context = _propagator().extract({"traceparent": parent}) if parent else None
        self._opening = tracer.start_as_current_span(
            name,
            context=context,
            attributes={f"tiered.{key}": value for key, value in attributes.items()},
            record_exception=False,
            set_status_on_exception=False,
        )
        self._span: OtelSpan | None = None
        self.name_to_others = ""

    def say(self, **attributes: Value) -> None:
        if self._span is not None:
            self._span.set_attributes({f"tiered.{key}": value for key, value in attributes.items()})

    def __enter__(self) -> Self:
        self._span = self._opening.__enter__()
        self.name_to_others = _named()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._span is not None:
            self._span.set_attribute("error.type", kind.__qualname__)
            self._span.set_status(_failed())
        self._opening.__exit__(kind, error, trace)


@cache
def _failed() -> StatusCode:
    from opentelemetry.trace import StatusCode

    return StatusCode.ERROR


@cache
def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _named() -> str:
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get("traceparent", "")


class _Nothing:
    def stop(self) -> None:
        pass


class _Exporting:
    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def stop(self) -> None:
        switch_off()
        # The SDK waits half a minute for a collector that is away, whatever it is told.
        sending = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        sending.start()
        sending.join(STOP_S)
