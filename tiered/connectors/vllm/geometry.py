"""How a block of the engine becomes a block of the pool: its layers' pages, one after the other, each as it is.

Owns what the layout is called and how many bytes it has; refuses to know tensors. What a page looks like inside is
the engine's business, so everything on which that depends is part of the interior's name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tiered.errors import ConfigError
from tiered.layout import DTYPE_BYTES, INTERIOR_CHARS_MAX, KvLayout

_SIDE_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Page:
    """One layer's part of a block. n_kv_heads, head_dim, dtype: as the model has them; 0 where packing hides it."""

    layer: str
    n_bytes: int
    n_kv_heads: int
    head_dim: int
    dtype: str


def layout_of(
    pages: Sequence[Page], *, block_tokens: int, attention: Literal["gqa", "mla"], packing: Sequence[str]
) -> KvLayout:
    """packing: all that decides what a page looks like inside, most telling first.

    The model's own numbers where they account for every byte, else numbers that do.
    Errors: ConfigError for blocks that no layout can describe.
    """
    if not pages:
        raise ConfigError("model: it keeps no KV, so there is nothing to cache; start it without the connector")
    interior = interior_of(pages, packing)
    first, n_bytes = pages[0], sum(page.n_bytes for page in pages)
    n_planes = 2 if attention == "gqa" else 1
    is_even = all(page.n_bytes == first.n_bytes for page in pages)
    if is_even and first.dtype in DTYPE_BYTES and first.n_kv_heads and first.head_dim:
        plain = n_planes * block_tokens * first.n_kv_heads * first.head_dim * DTYPE_BYTES[first.dtype]
        if plain == first.n_bytes:
            return KvLayout(
                n_layers=len(pages),
                n_kv_heads=first.n_kv_heads,
                head_dim=first.head_dim,
                dtype=first.dtype,
                block_tokens=block_tokens,
                attention=attention,
                interior=interior,
            )
    n_layers = len(pages) if is_even else 1
    row_bytes, rest = divmod(n_bytes, n_layers * n_planes * block_tokens)
    if rest or not 1 <= row_bytes <= _SIDE_MAX:
        raise ConfigError(
            f"model: blocks of {n_bytes} bytes for {block_tokens} tokens cannot be described; use another block size "
            "or KV dtype",
            field="model",
        )
    return KvLayout(
        n_layers=n_layers,
        n_kv_heads=1,
        head_dim=row_bytes,
        dtype="uint8",
        block_tokens=block_tokens,
        attention=attention,
        interior=interior,
    )


def interior_of(pages: Sequence[Page], packing: Sequence[str]) -> str:
    """Short, for people; the digest is of every layer's name and size too."""
    told = "/".join(re.sub(r"[^0-9A-Za-z._+-]", "_", word) for word in packing if word)
    facts = repr([tuple(packing), *((page.layer, page.n_bytes) for page in pages)])
    digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return f"{told[: INTERIOR_CHARS_MAX - 17]}#{digest}"


def in_layer_order(names: Sequence[str]) -> list[str]:
    """Layers by the numbers in their names, so that every process has them in one order."""
    return sorted(names, key=_numbers_as_numbers)


def _numbers_as_numbers(name: str) -> list[tuple[bool, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(False, int(part), "") if part.isdigit() else (True, 0, part) for part in parts]
