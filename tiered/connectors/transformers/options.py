"""GeneratorOptions: how a CachedGenerator reuses and stores KV, and what of that is part of a block's identity."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from tiered.hashing.chain import Extras
from tiered.hashing.scope import ModelScope

_SHAPES: Final = re.compile(r", (chunks of \d+)$")
"""How the weights_version of a scope ends that GeneratorOptions.scope made."""


class Reuse(enum.Enum):
    """How finely cached KV is reused."""

    EXACT = "exact"
    """Whole prefill chunks: results equal those without a cache bit for bit."""
    BLOCK = "block"
    """Every full block: a little more reuse; results equal up to the rounding of other kernel shapes."""


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """chunk_tokens: a multiple of the layout's block_tokens."""

    chunk_tokens: int = 128
    reuse: Reuse = Reuse.EXACT
    storage: Literal["copy", "paged"] = "copy"
    """copy: cached blocks are copied into a cache of transformers' own, and given back before anything is computed.
    paged: they are read where they are until the answer is done; new tokens go to blocks of the request's own."""
    pin_s: float = 20.0
    """With paged storage: an answer that takes longer copies the blocks out after all and gives them back. Keep it
    well below the pool's match_lease_s, when they would be taken back and the answer had to be computed anew."""
    load_deadline_s: float = 5.0
    verify: bool = True
    """Check each block's checksum before its bytes are used: about 0.1 ms a MiB."""

    def __post_init__(self) -> None:
        if self.storage not in ("copy", "paged"):
            raise ValueError(f"storage: {self.storage!r} is neither copy nor paged")
        if self.storage == "paged" and self.reuse is Reuse.EXACT:
            raise ValueError("storage: paged attention equals contiguous up to rounding; set reuse to Reuse.BLOCK")

    def scope(self, plain: ModelScope) -> ModelScope:
        """What to attach the client with, so that others who know its scope can name its blocks by their tokens."""
        if self.reuse is not Reuse.EXACT:
            return plain
        return msgspec.structs.replace(plain, weights_version=f"{plain.weights_version}, {self.shapes}")

    @property
    def shapes(self) -> str:
        """Chunks of another size are other bits: where bits count, they are part of what a block is."""
        return f"chunks of {self.chunk_tokens}"

    def check(self, scope: ModelScope, *, block_tokens: int) -> None:
        """Errors: ValueError when blocks of this scope and size cannot be reused and stored in this way."""
        if self.chunk_tokens % block_tokens:
            raise ValueError(
                f"chunk_tokens: {self.chunk_tokens} is no multiple of the layout's block_tokens, {block_tokens}"
            )
        said = _SHAPES.search(scope.weights_version)
        if said is not None and (self.reuse is not Reuse.EXACT or said[1] != self.shapes):
            raise ValueError(f"reuse: the client's scope is that of engines with exactly {said[1]}; attach another")

    def extras(self, extras: Extras | None, scope: ModelScope) -> Extras | None:
        """Each block says how it was computed, unless the scope says so of all."""
        if self.reuse is not Reuse.EXACT or _SHAPES.search(scope.weights_version):
            return extras
        plain = extras or Extras()
        return msgspec.structs.replace(plain, salt=f"{plain.salt}\0{self.shapes}")
