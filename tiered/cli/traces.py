"""What ``tiered simulate`` and ``tiered plan`` share: reading a trace and its tenants, sizes, the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tiered.errors import ConfigError
from tiered.simulate.tenants import ONE, Tenants, by_field, read_tenants
from tiered.simulate.trace import Request, read_trace

TraceArgument = Annotated[
    Path,
    typer.Argument(
        help="JSON lines, plain or gzipped: requests, or a vLLM KV-event log.", show_default=False, metavar="TRACE"
    ),
]
BlockSizeOption = Annotated[
    int | None, typer.Option(help="Coarsen to blocks of this many tokens.", show_default="the trace's own")
]
TenantFieldOption = Annotated[
    str | None,
    typer.Option(help="Field of a request that names its tenant, each of equal weight.", show_default="one tenant"),
]
TenantsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="TOML or JSON: who the tenants are and what each was promised."),
]
LimitOption = Annotated[int | None, typer.Option(help="Only the first so many requests.", show_default="all")]


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace in memory."""

    name: str
    requests: Sequence[Request]
    unique: int
    """Different blocks in it."""

    @property
    def block_tokens(self) -> int:
        return self.requests[0].block_tokens

    @property
    def title(self) -> str:
        return (
            f"{self.name}: {len(self.requests)} requests, {self.unique} unique blocks of {self.block_tokens} tokens"
        )


def load_trace(path: Path, *, block_size: int | None, limit: int | None) -> Trace:
    """Errors: ConfigError naming the line, or an option that does not fit the trace."""
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit: {limit} is not at least 1", field="limit")
    if block_size is not None and block_size < 1:
        raise ConfigError(f"--block-size: {block_size} is not at least 1 token", field="block_size")
    requests = list(read_trace(path, block_tokens=block_size, limit=limit))
    if not requests:
        raise ConfigError(f"trace: {path} holds no request")
    sizes = {request.block_tokens for request in requests}
    if len(sizes) > 1:
        raise ConfigError(
            f"trace: {path} has blocks of {' and '.join(map(str, sorted(sizes)))} tokens; give --block-size a common "
            "multiple"
        )
    unique = len({block for request in requests for block in request.blocks})
    if not unique:
        raise ConfigError(f"trace: {path} has no request as long as one block of {min(sizes)} tokens")
    return Trace(path.name, requests, unique)


def load_tenants(trace: Trace, *, field: str | None, file: Path | None) -> Tenants:
    if field is not None and file is not None:
        raise ConfigError("--tenant-field: the --tenants file says who the tenants are; give one of the two")
    if file is not None:
        return read_tenants(file, trace.requests)
    return ONE if field is None else by_field(field)


def parse_blocks(flag: str, text: str, *, unique: int, least: int) -> int:
    """``"4096"`` or ``"5%"`` of the trace's unique blocks. Errors: ConfigError naming the flag."""
    number = text.removesuffix("%")
    try:
        blocks = int(float(number) / 100 * unique) if text.endswith("%") else int(number)
    except (ValueError, OverflowError):
        blocks = -1
    blocks = max(blocks, least) if text.endswith("%") and blocks >= 0 else blocks
    if not least <= blocks <= 1 << 32:
        raise ConfigError(
            f"{flag}: {text!r} is not a number of blocks from {least} on, or a share such as 5%", field=flag
        )
    return blocks


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal's standard error, nothing elsewhere; what it gives is to be called once a step."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task(what, total=total)
        yield lambda: bars.advance(bar)
