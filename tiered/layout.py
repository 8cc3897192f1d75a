"""Shape, dtype and bytes of one block: part of its identity, so it stands below hashing and pool alike.

Knows no tensor library.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "uint8": 1}

LAYOUT_VERSION: Final = 1
"""Grows when the physical order inside a block changes."""

INTERIOR_CHARS_MAX: Final = 128


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Geometry of one block: ``block_tokens`` tokens of every layer, contiguous.

    Physical order: (n_layers, n_planes, block_tokens, n_kv_heads, head_dim), where n_planes is 2 (K, V) for MHA and
    GQA and 1 (the latent) for MLA.

    interior: '' for that order; else the name of an engine's own packing, which nobody but that engine looks into.
              Such a block has as many bytes.
    """

    n_layers: int
    n_kv_heads: int
    head_dim: int
    dtype: str
    block_tokens: int = 16
    attention: Literal["gqa", "mla"] = "gqa"
    version: int = LAYOUT_VERSION
    interior: str = ""

    def __post_init__(self) -> None:
        for field in ("n_layers", "n_kv_heads", "head_dim", "block_tokens"):
            value = getattr(self, field)
            if not 1 <= value <= 1 << 20:
                raise ValueError(f"layout.{field}: {value} is not between 1 and 2**20")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"layout.dtype: {self.dtype!r} is none of {', '.join(sorted(DTYPE_BYTES))}")
        if self.attention not in ("gqa", "mla"):
            raise ValueError(f"layout.attention: {self.attention!r} is neither gqa nor mla")
        if len(self.interior) > INTERIOR_CHARS_MAX or not self.interior.isprintable():
            raise ValueError(f"layout.interior: at most {INTERIOR_CHARS_MAX} printable characters")

    def require_open(self) -> None:
        """Errors: ValueError unless others than one engine may look into a block."""
        if self.interior:
            raise ValueError(f"layout.interior: blocks packed as {self.interior} can only be copied whole")

    @property
    def n_planes(self) -> int:
        return 2 if self.attention == "gqa" else 1

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.n_layers, self.n_planes, self.block_tokens, self.n_kv_heads, self.head_dim)

    @property
    def token_bytes(self) -> int:
        return self.n_layers * self.n_planes * self.n_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_tokens

    def describe(self) -> str:
        """One short line for people and logs."""
        packing = f", packed as {self.interior}" if self.interior else ""
        return (
            f"{self.attention} {self.n_layers}x{self.n_kv_heads}x{self.head_dim} {self.dtype}, "
            f"{self.block_tokens} tokens a block, v{self.version}{packing}"
        )
