"""Request traces: prefix-chained block ids with times, read from the formats that are about.

Every id names a whole prefix: equal ids mean equal prompts up to and including that block. Read here: JSON lines,
plain or gzipped, with ``timestamp`` (ms), ``hash_ids`` or ``hash_runs`` (``[[first, count], ...]``), and if present
``output_length`` (tokens), ``block_size`` (tokens), ``api_ms`` (how long the request ran), ``session_id`` and any
other field, such as one that names a tenant. Mooncake's own files have blocks of 512 tokens and do not say so. vLLM's
KV-event logs are known by their first line; ``kv_events.py`` says what they tell.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from tiered.errors import ConfigError
from tiered.simulate.kv_events import is_event_log, read_events

DEFAULT_BLOCK_TOKENS: Final = 512
"""Of files that do not say, as Mooncake's do not."""

RUN_MAX: Final = 1 << 24
"""Blocks in one run of ids: 16 million are beyond any prompt."""

OUTPUT_TOKENS_MAX: Final = 1 << 32
"""Beyond any answer, and small enough for a time to be reckoned from it."""

Block = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]


class _Line(msgspec.Struct):
    timestamp: float
    hash_ids: list[Block] | None = None
    hash_runs: list[tuple[Block, Annotated[int, msgspec.Meta(ge=1, le=RUN_MAX)]]] | None = None
    output_length: Annotated[int, msgspec.Meta(ge=0, le=OUTPUT_TOKENS_MAX)] | None = None
    block_size: int = DEFAULT_BLOCK_TOKENS
    api_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request: arrival, its prompt's blocks from the first on, and what its line says of it besides."""

    arrival_s: float
    blocks: Sequence[int]
    block_tokens: int
    output_tokens: int
    fields: dict[str, Any]


def read_trace(path: Path, *, block_tokens: int | None = None, limit: int | None = None) -> Iterator[Request]:
    """Requests in the order of the file; those of an event log by time.

    block_tokens: coarsen to blocks of this many tokens, a multiple of the file's own; a coarse block is named by its
    last fine one, and a partial one at the end is dropped.
    Errors: ConfigError naming file and line for what is not a request, or the option for a size that does not fit.
    """
    lines = ((f"{path}, line {number}", line) for number, line in enumerate(_lines(path), start=1) if line.strip())
    first = next(lines, None)
    if first is None:
        return
    all_lines = chain([first], lines)
    read = _from_events if is_event_log(first[1]) else _from_lines
    for number, request in enumerate(read(all_lines, block_tokens), start=1):
        yield request
        if number == limit:
            return


def _from_lines(lines: Iterator[tuple[str, bytes]], block_tokens: int | None) -> Iterator[Request]:
    return (_request(line, where, block_tokens) for where, line in lines)


def _from_events(lines: Iterator[tuple[str, bytes]], block_tokens: int | None) -> Iterator[Request]:
    try:
        for seen in read_events(lines):
            blocks, size = _coarsen(seen.blocks, seen.block_tokens, block_tokens)
            yield Request(seen.arrival_s, blocks, size, 0, seen.fields)
    except ValueError as error:
        raise ConfigError(f"trace: {error}") from None


def _request(line: bytes, where: str, block_tokens: int | None) -> Request:
    try:
        fields = _FIELDS.decode(line)
        row = msgspec.convert(fields, _Line, strict=True)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"trace: {where}: {error}; expected a JSON object with timestamp and hash_ids") from None
    if row.hash_ids is not None:
        blocks = row.hash_ids
    elif row.hash_runs is not None:
        blocks = [block for first, count in row.hash_runs for block in range(first, first + count)]
    else:
        raise ConfigError(f"trace: {where}: neither hash_ids nor hash_runs; each request names its blocks")
    if row.block_size < 1:
        raise ConfigError(f"trace: {where}: block_size {row.block_size} is not a number of tokens")
    coarse, size = _coarsen(blocks, row.block_size, block_tokens)
    return Request(row.timestamp / 1e3, coarse, size, row.output_length or 0, fields)


def _coarsen(blocks: Sequence[int], size: int, block_tokens: int | None) -> tuple[Sequence[int], int]:
    if block_tokens is None or block_tokens == size:
        return blocks, size
    factor, rest = divmod(block_tokens, size)
    if rest or factor < 1:
        raise ConfigError(
            f"--block-size: {block_tokens} is no multiple of the trace's own {size} tokens a block",
            field="block_size",
        )
    return blocks[factor - 1 :: factor], block_tokens


_FIELDS: Final = msgspec.json.Decoder(dict[str, Any])


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            gzipped = file.peek(2)[:2] == b"\x1f\x8b" if isinstance(file, io.BufferedReader) else False
            yield from gzip.GzipFile(fileobj=file) if gzipped else file
    except (OSError, EOFError) as error:
        raise ConfigError(
            f"trace: cannot read {path}: {error}; give a readable JSON-lines file, plain or gzipped"
        ) from None
