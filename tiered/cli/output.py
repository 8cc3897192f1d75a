"""How the command speaks: tables or JSON on standard output, progress and errors on standard error.

It knows numbers, columns and terminals; it knows nothing of clusters.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, TextIO

import msgspec
import typer
from rich.console import Console
from rich.table import Table

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON: raw numbers, for programs.")]

PLAIN_WIDTH = 160
"""Columns of a table that goes to a file or a pipe, where nothing says how wide the reader is."""

SILENT_S = 2.0
"""Work shorter than this needs no line of its own."""

_TICK_S = 0.2


def print_json(value: object) -> None:
    """One indented JSON document; records become objects."""
    sys.stdout.write(json.dumps(msgspec.to_builtins(value), indent=2) + "\n")


def print_lines(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values in two aligned columns, without a frame."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name:<{width}}  {value}")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, total: bool = False) -> None:
    """The first column is a name, the others are right-aligned; total sets the last row apart."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for index, row in enumerate(rows):
        is_total = total and index == len(rows) - 1
        table.add_row(*row, style="bold" if is_total else None)
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    with console.capture() as capture:
        console.print(table, markup=False)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def human_bytes(count: int | None) -> str:
    """``1.2 GiB``; ``none`` stands for a bound that is not set."""
    if count is None:
        return "none"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value == int(value) else f"{value:.1f} {unit}"


def human_count(count: int) -> str:
    return f"{count:,}"


def human_share(part: int, whole: int) -> str:
    """``42.0%`` of whole; only all of it is 100.0%, and only nothing 0.0%. A dash where there is no whole."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if part > 0 and percent < 0.05:
        return "<0.1%"
    return f"{min(percent, 99.9) if part < whole else percent:.1f}%"


@contextmanager
def progress(what: str, *, stream: TextIO | None = None) -> Iterator[None]:
    """Say that something takes time: a running clock on a terminal, one line after SILENT_S elsewhere."""
    out = sys.stderr if stream is None else stream
    ended = threading.Event()
    began = time.monotonic()
    ticker = threading.Thread(target=_tick, args=(what, out, began, ended), name="progress", daemon=True)
    ticker.start()
    try:
        yield
    finally:
        ended.set()
        ticker.join()
    if not out.isatty() and time.monotonic() - began >= SILENT_S:
        print(f"{what}: done after {time.monotonic() - began:.0f} s", file=out, flush=True)


def _tick(what: str, out: TextIO, began: float, ended: threading.Event) -> None:
    if ended.wait(SILENT_S):
        return
    if not out.isatty():
        print(f"{what} ...", file=out, flush=True)
        return
    while not ended.wait(_TICK_S):
        out.write(f"\r\x1b[K{what} ... {time.monotonic() - began:.0f} s")
        out.flush()
    out.write("\r\x1b[K")
    out.flush()
