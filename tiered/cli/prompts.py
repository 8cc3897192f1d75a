"""Prompts for commands: a file of token ids or of block hashes, and what the coordinator answers about one.

Owns what such a file may look like, and the records of those answers. It calls nobody.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from tiered.errors import ConfigError
from tiered.types import HASH_BYTES

TenantOption = Annotated[str | None, typer.Option("--tenant", help="Whose prompt it is.", show_default=False)]

TokensOption = Annotated[
    str | None,
    typer.Option(
        "--tokens",
        metavar="FILE",
        help="The prompt's token ids: a JSON list, or numbers with blanks or commas between; - is standard input.",
        show_default=False,
    ),
]

HashesOption = Annotated[
    str | None,
    typer.Option(
        "--hashes",
        metavar="FILE",
        help="Or the hashes of its blocks in hex, likewise.",
        show_default=False,
    ),
]

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="As its engines call it, where engines of several are attached.", show_default=False
    ),
]

_FILE_BYTES_MAX: Final = 32 << 20
_BETWEEN: Final = re.compile(r"[\s,]+")
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_HASH: Final = re.compile(rf"[0-9a-fA-F]{{{2 * HASH_BYTES}}}")


class NodeRoute(msgspec.Struct, frozen=True):
    node: str
    hot_blocks: int
    peer_blocks: int
    redis_blocks: int
    computed_tokens: int
    expected_ttft_s: float | None
    uncached_ttft_s: float | None
    waiting_s: float
    assumed: list[str]


class NotEligible(msgspec.Struct, frozen=True):
    node: str
    reason: str


class Route(msgspec.Struct, frozen=True):
    """Nodes for a prompt, best first; and those that cannot have it."""

    model: str
    block_tokens: int
    blocks: int
    nodes: list[NodeRoute]
    not_eligible: list[NotEligible]
    unmeasured: list[str]
    lag_s: float | None


class Run(msgspec.Struct, frozen=True):
    first_block: int
    blocks: int
    nodes: list[str]
    n_nodes: int
    redis: bool


class TierBlocks(msgspec.Struct, frozen=True):
    hot: int
    redis: int
    nowhere: int


class ScopeCoverage(msgspec.Struct, frozen=True):
    model: str | None
    weights_version: str | None
    tp_rank: int | None
    pp_rank: int | None
    blocks: int
    covered_blocks: int
    tiers: TierBlocks
    runs: list[Run]
    n_runs: int
    hashes: list[str]


class Whereabouts(msgspec.Struct, frozen=True):
    """Where the blocks of a prompt are, in each scope of its model."""

    scopes: list[ScopeCoverage]
    lag_s: float | None


class HotPrefix(msgspec.Struct, frozen=True):
    tenant: str
    hash: str
    blocks: int
    hits: int
    nodes: list[str]


class HotPrefixes(msgspec.Struct, frozen=True):
    prefixes: list[HotPrefix]


def question(*, tenant: str | None, tokens: str | None, hashes: str | None, model: str | None) -> dict[str, Any]:
    """The body that asks about a prompt, from the flags. Errors: ConfigError naming the flag and the fix."""
    if (tokens is None) == (hashes is None):
        raise ConfigError("--tokens: give the prompt by --tokens FILE or by --hashes FILE", field="tokens")
    if tenant is None:
        raise ConfigError("--tenant: say whose prompt it is", field="tenant")
    asked: dict[str, Any] = {"tenant": tenant} | ({} if model is None else {"model": model})
    if tokens is not None:
        return asked | {"tokens": read_tokens(tokens)}
    assert hashes is not None
    return asked | {"hashes": read_hashes(hashes)}


def read_tokens(path: str) -> list[int]:
    """Errors: ConfigError naming what is no token id."""
    tokens = []
    for item in _items("--tokens", path):
        token = int(item) if isinstance(item, str) and _NUMBER.fullmatch(item) else item
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 1 << 32:
            raise ConfigError(f"--tokens: {item!r} in {path} is no token id, a number in [0, 2**32)", field="tokens")
        tokens.append(token)
    return tokens


def read_hashes(path: str) -> list[str]:
    """Errors: ConfigError naming what is no block hash."""
    hashes = []
    for item in _items("--hashes", path):
        if not isinstance(item, str) or not _HASH.fullmatch(item):
            raise ConfigError(
                f"--hashes: {item!r} in {path} is no block hash, {2 * HASH_BYTES} hexadecimal digits", field="hashes"
            )
        hashes.append(item)
    return hashes


def _items(flag: str, path: str) -> list[object]:
    field = flag.removeprefix("--")
    try:
        data = sys.stdin.buffer.read(_FILE_BYTES_MAX + 1) if path == "-" else _read(Path(path))
        if len(data) > _FILE_BYTES_MAX:
            raise ConfigError(f"{flag}: {path} has more than {_FILE_BYTES_MAX} bytes", field=field)
        text = data.decode().strip()
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read {path}: {error.strerror}", field=field) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{flag}: {path} is no text file", field=field) from None
    if not text.startswith("["):
        return list(filter(None, _BETWEEN.split(text)))
    try:
        return msgspec.json.decode(text, type=list[object])
    except RecursionError:
        raise ConfigError(
            f"{flag}: {path} is not a JSON list of numbers or texts: it is nested", field=field
        ) from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{flag}: {path} is not a JSON list: {error}", field=field) from None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_FILE_BYTES_MAX + 1)
