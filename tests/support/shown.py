"""What a process shows on /metrics, held to a table of declarations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tiered.metrics.series import Catalogue, Kind

Labels: TypeAlias = frozenset[str]


@dataclass(slots=True)
class Shown:
    """One series: its type, and the sets of label names that its samples have."""

    kind: str
    labels: set[Labels] = field(default_factory=set)


def text_of(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5.0) as answer:
        text: str = answer.read().decode()
        return text


def shown(*texts: str) -> dict[str, Shown]:
    """By the names under which they are queried."""
    found: dict[str, Shown] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            series = found.setdefault(name, Shown(family.type))
            series.labels |= {frozenset(sample.labels) - {"le"} for sample in family.samples}
    return found


def differences(found: Mapping[str, Shown], catalogue: Catalogue) -> list[str]:
    """What is shown and not declared, declared and not shown, or not as it is declared."""
    declared = {series.name: series for series in catalogue}
    wrong = [f"{name} has no row" for name in found.keys() - declared.keys()]
    wrong += [f"{name} is not shown" for name in declared.keys() - found.keys()]
    for name in found.keys() & declared.keys():
        series, seen = declared[name], found[name]
        if seen.kind != series.kind:
            wrong.append(f"{name} is a {seen.kind}, declared a {series.kind}")
        if seen.labels - {frozenset(series.labels)}:
            wrong.append(f"{name} has labels {seen.labels}, declared {series.labels}")
    return sorted(wrong)


def unseen(found: Mapping[str, Shown]) -> set[str]:
    """Series of which no sample was shown, so that their labels could not be compared."""
    return {name for name, seen in found.items() if not seen.labels}


def sums(text: str, name: str, *by: str) -> dict[tuple[str, ...], float]:
    """Of one series' samples, by some of its labels."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                key = tuple(sample.labels[label] for label in by)
                found[key] = found.get(key, 0.0) + sample.value
    return found


def total(texts: Iterable[str], name: str) -> float:
    return sum(sum(sums(text, name).values()) for text in texts)


def growing(text: str, catalogue: Catalogue) -> dict[tuple[str, ...], float]:
    """Every sample of counters and histograms that must not grow while nobody asks for anything."""
    still = {s.name for s in catalogue if s.kind is not Kind.GAUGE and not s.moves_idle}
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name in still:
            found |= {(sample.name, *sorted(sample.labels.values())): sample.value for sample in family.samples}
    return found
