"""Which tenants have a label of their own: first come, first labelled, for the life of the process.

A scrape stays small however many tenants there are, and no counter ever goes back: a place that was given is kept,
and who found none is summed as "other" for ever. The place of a tenant that is gone is not given on, since its counts
stay, and whoever took it would take its own out of "other".
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

T = TypeVar("T")

TENANT_LABELS_MAX: Final = 100

OTHER: Final = "other"
"""A tenant of this name never has a place, so that its counts cannot be taken for those of the rest."""


class TenantLabels:
    """Scrapes may run side by side. labels_max: how many places there are."""

    def __init__(self, labels_max: int = TENANT_LABELS_MAX) -> None:
        self._labels_max = labels_max
        self._labelled: set[str] = set()
        self._lock = threading.Lock()

    def of(self, weights: Mapping[str, float]) -> dict[str, str]:
        """The label of each tenant. weights: of several that are new at once, the heaviest come first."""
        with self._lock:
            n_free = self._labels_max - len(self._labelled)
            if n_free > 0:
                self._labelled.update(_heaviest(weights, weights.keys() - self._labelled - {OTHER}, n_free))
            return {tenant: tenant if tenant in self._labelled else OTHER for tenant in weights}


def grouped(tenants: Mapping[str, T], label_of: Mapping[str, str]) -> dict[str, list[T]]:
    """What is known of each tenant, by label."""
    groups: dict[str, list[T]] = {}
    for name, tenant in tenants.items():
        groups.setdefault(label_of[name], []).append(tenant)
    return groups


def _heaviest(weights: Mapping[str, float], names: Iterable[str], n: int) -> list[str]:
    return sorted(names, key=lambda name: (-weights[name], name))[:n]
