"""The demo's output: a line as each request ends, the table and the checks at the end, the summary file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tiered.cli.demo.record import Record, Row
from tiered.cli.output import human_count, print_table
from tiered.errors import ConfigError

COLUMNS: Final = (
    "request", "node", "tenant", "prompt", "hot", "peer", "redis", "missed", "first token", "without cache", "equal"
)  # fmt: skip


def print_rows(record: Record) -> None:
    print_table("Requests: prompt tokens by where their KV was found", COLUMNS, [_cells(row) for row in record.rows])


def print_checks(record: Record) -> None:
    rows = [(name.replace("_", " "), "yes" if held else "NO") for name, held in record.checks.items()]
    print_table("Observed", ("check", "held"), rows)


def line_of(row: Row) -> str:
    found = ", ".join(f"{n} {source}" for source, n in row.by_source().items() if n) or "nothing cached"
    return f"{row.request}: {row.prompt_tokens} tokens, {found}; first token after {_ms(row.ttft_ms)}"


def write_summary(record: Record, path: Path) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    except OSError as error:
        raise ConfigError(f"--summary: cannot write {path}: {error.strerror}; choose a path you may write") from None


def _cells(row: Row) -> tuple[str, ...]:
    counts = (row.prompt_tokens, row.hot, row.peer, row.redis, row.missed)
    equal = row.tokens_equal and row.logits_equal and row.kv_equal
    return (
        row.request,
        row.node,
        row.tenant,
        *(human_count(n) for n in counts),
        _ms(row.ttft_ms),
        _ms(row.ttft_no_cache_ms),
        "bit for bit" if equal else "NO",
    )


def _ms(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.2f} s"
