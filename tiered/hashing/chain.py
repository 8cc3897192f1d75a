"""Tokens to chained block hashes; full blocks only.

``h(i) = SHA-256(h(i-1) || tokens of block i as little-endian u32 || extras)``, starting from the scope id. The token
part has a fixed length, so where the extras begin is never ambiguous. No seed, no built-in ``hash``: the same on
every machine and in every process.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from tiered.types import HASH_BYTES, BlockHash

_TOKEN_BYTES: Final = 4


class MultimodalItem(msgspec.Struct, frozen=True):
    """An image or other item whose content stands behind placeholder tokens [offset, offset + length)."""

    content_hash: bytes
    offset: int
    length: int


class Extras(msgspec.Struct, frozen=True):
    """What distinguishes equal tokens: adapter, salt, multimodal content."""

    adapter: str = ""
    salt: str = ""
    items: tuple[MultimodalItem, ...] = ()

    def of_block(self, index: int, block_tokens: int) -> bytes:
        """Typed, tagged encoding of what concerns one block; empty when nothing does.

        Adapter and salt stand in the first block and reach the others through the chain.
        """
        first, last = index * block_tokens, (index + 1) * block_tokens
        tagged: list[tuple[str, object]] = []
        if index == 0 and self.adapter:
            tagged.append(("adapter", self.adapter))
        if index == 0 and self.salt:
            tagged.append(("salt", self.salt))
        for item in self.items:
            if item.offset < last and item.offset + item.length > first:
                tagged.append(("item", (item.content_hash, item.offset - first, item.length)))
        return msgspec.msgpack.encode(tagged) if tagged else b""


def chain_hashes(
    root: bytes, tokens: Sequence[int], *, block_tokens: int, extras: Extras | None = None, first_index: int = 0
) -> list[BlockHash]:
    """The hash of each full block of ``tokens``; a partial last block has none.

    root:   the scope id. tokens: ids below 2**32; a list, an array or a one-dimensional integer tensor's list.
    first_index: of the block that ``tokens`` begin with; root is then the hash of the block before it.
    Errors: ValueError when a token is not an integer in [0, 2**32).
    Cost:   one SHA-256 over 32 + 4 * block_tokens bytes a block.
    """
    n_blocks = len(tokens) // block_tokens
    packed = _pack(tokens)
    step = block_tokens * _TOKEN_BYTES
    hashes: list[BlockHash] = []
    append = hashes.append
    link = root
    if extras is None:
        for start in range(0, n_blocks * step, step):
            link = sha256(link + packed[start : start + step]).digest()
            append(link)  # type: ignore[arg-type]  # a NewType call per block costs a tenth of the loop
    else:
        for index in range(n_blocks):
            start = index * step
            link = sha256(
                link + packed[start : start + step] + extras.of_block(first_index + index, block_tokens)
            ).digest()
            append(BlockHash(link))
    return hashes


def join_hashes(hashes: Sequence[BlockHash]) -> bytes:
    """One byte string of all hashes, as they travel on the wire."""
    return b"".join(hashes)


def split_hashes(joined: bytes) -> list[BlockHash]:
    """The inverse of :func:`join_hashes`; ValueError when the length is no multiple of 32."""
    if len(joined) % HASH_BYTES:
        raise ValueError(f"{len(joined)} bytes are not a whole number of {HASH_BYTES}-byte hashes")
    return [BlockHash(joined[i : i + HASH_BYTES]) for i in range(0, len(joined), HASH_BYTES)]


def token_array(tokens: Sequence[int]) -> array[int]:
    """The tokens as u32; ValueError when one is not an integer in [0, 2**32)."""
    if isinstance(tokens, (bytes, bytearray)):  # array() would take four of them for one number
        tokens = list(tokens)
    try:
        return array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"tokens: every id is an integer in [0, 2**32): {error}") from None


def _pack(tokens: Sequence[int]) -> bytes:
    packed = token_array(tokens)
    if packed.itemsize != _TOKEN_BYTES:  # pragma: no cover - no supported platform has another size
        raise RuntimeError("array('I') is not 32 bits wide on this platform")
    if sys.byteorder == "big":  # pragma: no cover
        packed.byteswap()
    return packed.tobytes()
