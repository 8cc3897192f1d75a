"""Draws hit ratio against pool size: a line for each policy, and a second panel for the tenants where there are some.

matplotlib is an optional extra and is imported only to draw, without a display.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tiered.errors import ConfigError

SUFFIXES: Final = (".png", ".svg", ".pdf")
TENANTS_MAX: Final = 12
"""Lines that a reader can still tell apart in one panel; the tenants with most accesses are drawn."""

Row = Mapping[str, Any]
Line = tuple[str, Sequence[tuple[int, float]]]


def check_plot(path: Path) -> None:
    """Before the work begins. Errors: ConfigError saying what is missing or wrong."""
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot: matplotlib is not installed; pip install 'tiered-kv[plot]'", field="plot")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot: {path} ends in none of {', '.join(SUFFIXES)}", field="plot")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot: {path.parent} is not a folder; make it first", field="plot")


def write_plot(path: Path, rows: Sequence[Row], *, title: str) -> None:
    """rows: of ``tiered simulate``. Errors: ConfigError for a file that cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [("all", policy_lines(rows))]
    by_tenant = tenant_lines(rows)
    if len(by_tenant) > 1:
        panels.append(("by tenant", by_tenant))
    figure = Figure(figsize=(7 * len(panels), 5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for place, (name, lines) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        for label, points in lines:
            axes.plot([size for size, _ in points], [ratio for _, ratio in points], marker="o", label=label)
        if any(len(points) > 1 for _, points in lines):
            axes.set_xscale("log")
        axes.set(title=name, xlabel="hot blocks of each worker", ylabel="block hit ratio, %")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"--plot: cannot write {path}: {error.strerror}", field="plot") from None


def policy_lines(rows: Sequence[Row]) -> list[Line]:
    """Label and (hot blocks, hit ratio) of each line, by size."""
    label = _labels(rows)
    return _lines((label(row), row["hot_blocks"], row["hit_ratio"]) for row in rows)


def tenant_lines(rows: Sequence[Row]) -> list[Line]:
    """The same for each tenant; empty where no row has several."""
    accesses: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        for tenant, tally in row["tenants"].items():
            accesses[tenant] += tally["accesses"]
    if len(accesses) < 2:
        return []
    drawn = sorted(accesses, key=lambda tenant: (-accesses[tenant], tenant))[:TENANTS_MAX]
    label = _labels(rows)
    many = len({label(row) for row in rows if row["tenants"]}) > 1
    return _lines(
        (f"{tenant}, {label(row)}" if many else tenant, row["hot_blocks"], row["tenants"][tenant]["hit_ratio"])
        for tenant in drawn
        for row in rows
        if tenant in row["tenants"]
    )


def _labels(rows: Sequence[Row]) -> Callable[[Row], str]:
    """Names a row by its policy, and by what else differs between the rows, size apart."""
    keys = ("workers", "routing", "write_policy", "redis_blocks")
    differing = [key for key in keys if len({row[key] for row in rows if row["tenants"]}) > 1]

    def label(row: Row) -> str:
        parts = [f"{key.replace('_', ' ')} {row[key]}" for key in differing if row["tenants"]]
        return ", ".join([str(row["policy"]), *parts])

    return label


def _lines(points: Iterable[tuple[str, int, float]]) -> list[Line]:
    lines: dict[str, list[tuple[int, float]]] = {}
    for label, size, ratio in points:
        lines.setdefault(label, []).append((size, ratio))
    return [(label, sorted(found)) for label, found in lines.items()]
