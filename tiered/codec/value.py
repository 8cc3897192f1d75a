"""A block as one value and back: header, codec and checksum together, in the only order that is safe.

Owns that order: what comes from outside is verified before it is decoded, and decoded before anybody sees it. Does
not know where values are kept, or what happens to a bad one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiered.codec.codecs import CODECS, EXACT_CODECS, decode, encode
from tiered.codec.frame import (
    CODEC_NONE,
    HEADER_BYTES,
    BlockHeader,
    checksum_of,
    decode_header,
    encode_header,
    verify,
)
from tiered.errors import IntegrityError
from tiered.layout import KvLayout
from tiered.types import BlockHash


@dataclass(frozen=True, slots=True)
class Value:
    """What is to be stored. codec: what the block ended up with."""

    codec: str
    header: bytes
    stored: memoryview

    @property
    def n_bytes(self) -> int:
        return HEADER_BYTES + self.stored.nbytes


@dataclass(frozen=True, slots=True)
class Opened:
    """A good value whose block lies in its place. checksum: of the bytes there."""

    checksum: bytes
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Expected:
    """What every value of one scope is held to. exact_only: one that a lossy codec has stored does not count."""

    scope_id: bytes
    layout: KvLayout
    exact_only: bool = False


def value_of(
    payload: memoryview,
    *,
    block_hash: BlockHash,
    scope_id: bytes,
    layout: KvLayout,
    codec: str,
    checksum: bytes | None = None,
) -> Value:
    """Encode a block. checksum: of the payload, if it is known. payload: of bytes; copied only where it shrinks."""
    encoded = encode(codec, payload, layout)
    as_it_is = encoded.codec == CODEC_NONE
    header = BlockHeader(
        block_hash=block_hash,
        scope_id=scope_id,
        codec=encoded.codec,
        raw_bytes=payload.nbytes,
        stored_bytes=encoded.stored.nbytes,
        checksum=checksum if as_it_is and checksum is not None else checksum_of(encoded.stored),
    )
    return Value(encoded.codec, encode_header(header), encoded.stored)


def open_value(
    header: memoryview, place: memoryview, *, n_bytes: int, block_hash: BlockHash, expected: Expected
) -> Opened:
    """Verify a value whose first ``n_bytes`` of payload lie at the beginning of its block's place; decode it there.

    Errors: IntegrityError with the reason; the place may then hold anything.
    """
    read = decode_header(header)
    stored = place[:n_bytes]
    verify(
        read,
        block_hash=block_hash,
        scope_id=expected.scope_id,
        raw_bytes=place.nbytes,
        payload=stored,
        codecs=CODECS,
    )
    if read.codec == CODEC_NONE:
        return Opened(read.checksum, read.stored_bytes)
    if expected.exact_only and read.codec not in EXACT_CODECS:
        raise IntegrityError("codec", read.codec)
    decode(read.codec, stored, place, expected.layout)
    return Opened(checksum_of(place), read.stored_bytes)
