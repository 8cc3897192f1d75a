"""Metric families of second copies; :mod:`worker.metrics` joins them to the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tiered.core.copies import SecondCopies
from tiered.types import SecondUse, TenantStats
from worker.lost import LostCounters


@dataclass(frozen=True, slots=True)
class CopiesSnapshot:
    """looked, made, refused: as in tiered.core.copies.SecondCopies."""

    looked: int
    made: int
    refused: int
    lost: LostCounters


def copies_snapshot(seconds: SecondCopies | None, lost: LostCounters) -> CopiesSnapshot:
    if seconds is None:
        return CopiesSnapshot(0, 0, 0, lost)
    return CopiesSnapshot(seconds.looked, seconds.made, seconds.refused, lost)


def copies_families(
    copies: CopiesSnapshot, tenants: Mapping[str, TenantStats], replicated: Mapping[str, int]
) -> Iterable[Metric]:
    """tenants: as many as may be labels."""
    for name, what, value in (
        ("tiered_second_looked_blocks", "Blocks looked at for whether they have a second copy", copies.looked),
        ("tiered_second_made_blocks", "Second copies made because there was one only", copies.made),
        ("tiered_second_refused_blocks", "Second copies asked for in vain", copies.refused),
        ("tiered_lost_brought_blocks", "Blocks brought up to be their second place", copies.lost.brought),
    ):
        yield CounterMetricFamily(name, what, value=value)
    yield GaugeMetricFamily(
        "tiered_lost_waiting_blocks",
        "Blocks of the cluster that wait for a node with room to be their second place",
        value=copies.lost.waiting,
    )
    yield GaugeMetricFamily(
        "tiered_lost_dropped_blocks", "Of the cluster's, those that list had no room for", value=copies.lost.dropped
    )
    asking = {tenant: stats.seconds for tenant, stats in tenants.items() if stats.seconds != SecondUse()}
    for name, what, field in (
        ("tiered_second_blocks", "Blocks of tenants with two copies, hot and in Redis", "second_blocks"),
        ("tiered_second_bytes", "What Redis holds of those", "second_bytes"),
        ("tiered_single_blocks", "Blocks of such tenants that are in no other place", "single_blocks"),
    ):
        gauge = GaugeMetricFamily(name, what, labels=("tenant",))
        for tenant, use in asking.items():
            gauge.add_metric((tenant,), getattr(use, field))
        yield gauge
    counter = CounterMetricFamily(
        "tiered_redis_replicated_blocks",
        "Blocks stored for tenants that ask for two copies, by whether a replica had them in time",
        labels=("outcome",),
    )
    for outcome, n_blocks in replicated.items():
        counter.add_metric((outcome,), n_blocks)
    yield counter
