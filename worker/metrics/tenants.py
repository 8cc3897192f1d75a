"""The families by tenant: sums over all that share a label, so that what the labels have is what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final, TypeAlias

from prometheus_client.core import Metric

from tiered.metrics import worker as series
from tiered.metrics.series import Series
from tiered.metrics.tenant_labels import OTHER, grouped
from tiered.types import SecondUse, TenantStats

_Number: TypeAlias = Callable[[TenantStats], float]

_SUMS: Final[tuple[tuple[Series, _Number], ...]] = (
    (series.ASKED, attrgetter("tokens.asked")),
    (series.SAVED, attrgetter("saved_s")),
    (series.HOT_BYTES, attrgetter("hot_bytes")),
    (series.HOT_RESERVED, attrgetter("hot_reserved_bytes")),
    (series.HOT_BORROWED, lambda of: max(0, of.hot_bytes - of.hot_reserved_bytes)),
    (series.HOT_LENT, lambda of: max(0, of.hot_reserved_bytes - of.hot_bytes)),
    (series.EVICTED, attrgetter("evicted_blocks")),
    (series.DEMOTED, attrgetter("demoted_blocks")),
    (series.SUFFERED, attrgetter("reclaimed_blocks")),
    (series.CAUSED, attrgetter("caused_blocks")),
    (series.WANTED, attrgetter("wanted_bytes")),
)

_OUTCOMES: Final[Mapping[str, _Number]] = {
    "hot": attrgetter("tokens.hot"),
    "peer": attrgetter("tokens.peer"),
    "redis": attrgetter("tokens.redis"),
    "missed": attrgetter("tokens.missed"),
}

_REASONS: Final[Mapping[str, _Number]] = {
    "quota": attrgetter("limit_refused_blocks"),
    "room": lambda of: of.refused_blocks - of.limit_refused_blocks,
}

_SECONDS: Final[tuple[tuple[Series, _Number], ...]] = (
    (series.SECONDS, attrgetter("seconds.second_blocks")),
    (series.SECONDS_BYTES, attrgetter("seconds.second_bytes")),
    (series.SINGLES, attrgetter("seconds.single_blocks")),
)


def tenant_families(tenants: Mapping[str, TenantStats], label_of: Mapping[str, str]) -> Iterator[Metric]:
    groups = grouped(tenants, label_of)
    yield series.TOKENS.of(_split(groups, _OUTCOMES))
    yield series.REFUSED.of(_split(groups, _REASONS))
    for each, number in _SUMS:
        yield each.by({label: sum(map(number, group)) for label, group in groups.items()})
    limits = {t: of.hot_limit_bytes for t, of in tenants.items() if label_of[t] != OTHER}
    yield series.HOT_LIMIT.by({tenant: limit for tenant, limit in limits.items() if limit is not None})


def second_families(tenants: Mapping[str, TenantStats], label_of: Mapping[str, str]) -> Iterator[Metric]:
    """Of tenants that ask for two copies."""
    groups = grouped({t: of for t, of in tenants.items() if of.seconds != SecondUse()}, label_of)
    for each, number in _SECONDS:
        yield each.by({label: sum(map(number, group)) for label, group in groups.items()})


def _split(
    groups: Mapping[str, Iterable[TenantStats]], numbers: Mapping[str, _Number]
) -> dict[tuple[str, ...], float]:
    return {
        (label, name): sum(map(number, group)) for label, group in groups.items() for name, number in numbers.items()
    }
