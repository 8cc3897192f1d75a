"""Request traces: prefix-chained block ids with times, read from the formats that are about.

Every id names a whole prefix: equal ids mean equal prompts up to and including that block. Read here: JSON lines,
plain or gzipped, with ``timestamp`` (ms), ``hash_ids`` or ``hash_runs`` (``[[first, count], ...]``), and if present
``output_length`` (tokens), ``block_size`` (tokens), ``session_id`` and any other field, such as one that names a
tenant. Mooncake's own files have blocks of 512 tokens and do not say so.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tiered.errors import ConfigError

DEFAULT_BLOCK_TOKENS: Final = 512
"""Of files that do not say, as Mooncake's do not."""


class _Line(msgspec.Struct):
    timestamp: float
    hash_ids: list[int] | None = None
    hash_runs: list[tuple[int, int]] | None = None
    output_length: int | None = None
    block_size: int = DEFAULT_BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Request:
    """One request: arrival, its prompt's blocks from the first on, and what its line says of it besides."""

    arrival_s: float
    blocks: Sequence[int]
    block_tokens: int
    output_tokens: int
    fields: dict[str, Any]


def read_trace(path: Path, *, block_tokens: int | None = None, limit: int | None = None) -> Iterator[Request]:
    """Requests in the order of the file.

    block_tokens: coarsen to blocks of this many tokens, a multiple of the file's own; a coarse block is named by its
    last fine one, and a partial one at the end is dropped.
    Errors: ConfigError naming file and line for what is not a request, or the option for a size that does not fit.
    """
    for number, line in enumerate(_lines(path), start=1):
        if limit is not None and number > limit:
            return
        if line.strip():
            yield _request(line, f"{path}, line {number}", block_tokens)


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
    size = row.block_size
    if block_tokens is not None and block_tokens != size:
        factor, rest = divmod(block_tokens, size)
        if rest or factor < 1:
            raise ConfigError(
                f"--block-size: {block_tokens} is no multiple of the trace's own {size} tokens a block",
                field="block_size",
            )
        blocks, size = blocks[factor - 1 :: factor], block_tokens
    return Request(row.timestamp / 1e3, blocks, size, row.output_length or 0, fields)


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
