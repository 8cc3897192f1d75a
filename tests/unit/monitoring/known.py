"""What an expression may ask for: the series of docs/metrics.md, those of our rules, Prometheus' own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.support.boards import grouped_by, records, selectors
from tiered.metrics.page import CATALOGUES
from tiered.metrics.series import Kind

TARGET: Final = frozenset({"instance", "job"})
"""Labels that Prometheus gives to all that it scrapes."""

OWN: Final[Mapping[str, frozenset[str]]] = {
    "up": TARGET,
    "ALERTS": frozenset({"alertname", "alertstate", "severity"}) | TARGET,
}


def level(record: str) -> frozenset[str]:
    """Labels of a recorded series: those its name begins with."""
    return frozenset(record.split(":")[0].split("_")) - {"cluster"}


def _known() -> dict[str, frozenset[str]]:
    known = dict(OWN) | {record: level(record) for record in records()}
    for series in (series for catalogue in CATALOGUES for series in catalogue):
        labels = TARGET | frozenset(series.labels)
        if series.kind is Kind.HISTOGRAM:
            known |= {f"{series.name}_bucket": labels | {"le"}} | {
                f"{series.name}_{end}": labels for end in ("count", "sum")
            }
        else:
            known[series.name] = labels
    return known


KNOWN: Final = _known()


def wrong_in(expression: str) -> list[str]:
    """Series that nobody has, and labels that their series do not have. Errors: ValueError for what is no PromQL."""
    wrong = []
    for selector in selectors(expression):
        if selector.series not in KNOWN:
            wrong.append(f"{selector.series} is not in docs/metrics.md and no rule records it")
        else:
            unknown = selector.labels.keys() - KNOWN[selector.series]
            wrong += [f"{selector.series} has no label {label}" for label in sorted(unknown)]
    for labels, below in grouped_by(expression):
        kept = frozenset[str]().union(*(KNOWN.get(series, frozenset()) for series in below))
        wrong += [f"none of {sorted(below)} has a label {label}" for label in labels if label not in kept]
    return wrong
