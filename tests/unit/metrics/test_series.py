"""Declarations, and the families made of them."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tiered.metrics.series import Catalogue, Kind, Series, build_info
from tiered.metrics.timing import Timing


def text_of(*families: Metric) -> str:
    class Fixed(Collector):
        def collect(self) -> list[Metric]:
            return list(families)

    registry = CollectorRegistry()
    registry.register(Fixed())
    return generate_latest(registry).decode()


def test_a_counter_is_shown_under_its_own_name_with_its_meaning() -> None:
    counted = Series("tiered_x_total", Kind.COUNTER, "What it is", ("tenant", "outcome"))
    text = text_of(counted.of({("a", "hot"): 3}))
    assert "# HELP tiered_x_total What it is" in text
    assert "# TYPE tiered_x_total counter" in text
    assert 'tiered_x_total{outcome="hot",tenant="a"} 3.0' in text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tiered_x", Kind.COUNTER),
        ("tiered_x_total", Kind.GAUGE),
        ("x_total", Kind.COUNTER),
        ("tiered_x", Kind.HISTOGRAM),
    ],
)
def test_a_name_against_the_rules_is_refused(name: str, kind: Kind) -> None:
    with pytest.raises(ValueError, match=name):
        Series(name, kind, "")


def test_values_for_other_labels_than_declared_are_refused() -> None:
    one = Series("tiered_x", Kind.GAUGE, "", ("tenant",))
    with pytest.raises(ValueError):
        one.of({("a", "b"): 1})
    with pytest.raises(ValueError):
        one.one(1)


def test_a_series_is_declared_once() -> None:
    catalogue = Catalogue("test")
    catalogue.gauge("tiered_x", "")
    with pytest.raises(ValueError, match="declared twice"):
        catalogue.counter("tiered_x_total", "") and catalogue.gauge("tiered_x", "")


def test_a_histogram_has_a_bucket_for_every_bound_and_for_the_rest() -> None:
    took = Series("tiered_x_seconds", Kind.HISTOGRAM, "", ("kind",))
    timing = Timing()
    timing.note(20.0)
    lines = [line for line in text_of(took.timed({("get",): timing})).splitlines() if not line.startswith("#")]
    assert lines[0] == 'tiered_x_seconds_bucket{kind="get",le="5e-05"} 0.0'
    assert 'tiered_x_seconds_bucket{kind="get",le="+Inf"} 1.0' in lines
    assert lines[-2:] == ['tiered_x_seconds_count{kind="get"} 1.0', 'tiered_x_seconds_sum{kind="get"} 20.0']


def test_every_process_says_which_build_it_is() -> None:
    assert 'tiered_build_info{python="3.' in text_of(build_info(Catalogue("worker")))
    assert 'service="worker"' in text_of(build_info(Catalogue("worker")))
