"""deploy/'s boards and rules, read as data, and what their expressions ask of Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import promql_parser
import yaml

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
BOARDS: Final = DEPLOY / "grafana" / "dashboards"
PROMETHEUS: Final = DEPLOY / "prometheus" / "prometheus.yml"
RULES: Final = DEPLOY / "prometheus" / "tiered.rules.yml"

ANYTHING: Final = {"__rate_interval": "1m", "__range": "1h", "tenant": ".+", "node": ".+"}
"""Grafana's variables, for who only wants to read an expression."""


@dataclass(frozen=True, slots=True)
class Panel:
    """What is drawn; rows are none."""

    board: str
    raw: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.board}: {self.raw['title']}"

    @property
    def expressions(self) -> list[str]:
        return [target["expr"] for target in self.raw["targets"]]


@dataclass(frozen=True, slots=True)
class Board:
    file: str
    raw: Mapping[str, Any]

    @property
    def panels(self) -> list[Panel]:
        return [Panel(self.raw["title"], panel) for panel in self.raw["panels"] if panel["type"] != "row"]

    @property
    def variables(self) -> list[Mapping[str, Any]]:
        """Those that are asked of Prometheus."""
        return [each for each in self.raw["templating"]["list"] if each["type"] == "query"]


@dataclass(frozen=True, slots=True)
class Selector:
    """One series as an expression selects it. labels: those it compares, with what."""

    series: str
    labels: Mapping[str, str]


def boards() -> list[Board]:
    return [Board(path.name, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(BOARDS.glob("*.json"))]


def rules() -> list[dict[str, Any]]:
    """Recording and alerting ones, in order."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def records() -> dict[str, dict[str, Any]]:
    return {rule["record"]: rule for rule in rules() if "record" in rule}


def filled(expression: str, values: Mapping[str, str] = ANYTHING) -> str:
    """With Grafana's variables put in, the longest names first."""
    for name in sorted(values, key=len, reverse=True):
        expression = expression.replace(f"${{{name}}}", values[name]).replace(f"${name}", values[name])
    assert "$" not in expression, f"a variable that nobody gave a value: {expression}"
    return expression


def selectors(expression: str) -> list[Selector]:
    """Errors: ValueError for what is no PromQL."""
    return [_selector(node) for node in _walk(promql_parser.parse(expression)) if _is(node, "VectorSelector")]


def grouped_by(expression: str) -> list[tuple[list[str], set[str]]]:
    """Of each aggregation: the labels it keeps, and the series below it."""
    found = []
    for node in _walk(promql_parser.parse(expression)):
        if _is(node, "AggregateExpr") and node.modifier is not None:
            below = {_selector(each).series for each in _walk(node.expr) if _is(each, "VectorSelector")}
            found.append((list(node.modifier.labels), below))
    return found


def _selector(node: Any) -> Selector:
    return Selector(node.name, {matcher.name: matcher.value for matcher in node.matchers.matchers})


def _is(node: Any, kind: str) -> bool:
    return type(node).__name__ == kind


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        child = getattr(node, name, None)
        if child is not None:
            yield from _walk(child)
    for child in getattr(node, "args", None) or ():
        yield from _walk(child)
