"""Shape, dtype and bytes of one block: part of its identity, so it stands below hashing and pool alike.

Knows no tensor library.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "uint8": 1}

LAYOUT_VERSION: Final = 1
"""Grows when the physical order inside a block changes."""


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Geometry of one block: ``block_tokens`` tokens of every layer, contiguous.

    Physical order: (n_layers, n_planes, block_tokens, n_kv_heads, head_dim), where n_planes is 2 (K, V) for MHA and
    GQA and 1 (the latent) for MLA.
    """

    n_layers: int
    n_kv_heads: int
    head_dim: int
    dtype: str
    block_tokens: int = 16
    attention: Literal["gqa", "mla"] = "gqa"
    version: int = LAYOUT_VERSION

    def __post_init__(self) -> None:
        for field in ("n_layers", "n_kv_heads", "head_dim", "block_tokens"):
            value = getattr(self, field)
            if not 1 <= value <= 1 << 20:
                raise ValueError(f"layout.{field}: {value} is not between 1 and 2**20")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"layout.dtype: {self.dtype!r} is none of {', '.join(sorted(DTYPE_BYTES))}")
        if self.attention not in ("gqa", "mla"):
            raise ValueError(f"layout.attention: {self.attention!r} is neither gqa nor mla")

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
        return (
            f"{self.attention} {self.n_layers}x{self.n_kv_heads}x{self.head_dim} {self.dtype}, "
            f"{self.block_tokens} tokens a block, v{self.version}"
        )
