"""A block's value as Redis stores it and peers send it: a header of fixed size, then the payload.

Owns the format and every check that stands between foreign bytes and a pool (I6); does not know where a value
came from or what happens to a bad one.

======  =====  ==========================================================================
offset  bytes  content
======  =====  ==========================================================================
0       4      magic ``TKV1``
4       2      format version, unsigned little-endian: 1
6       2      length L of the header map, unsigned little-endian, at most 184
8       L      the header map: MessagePack map of the fields of :class:`BlockHeader`
8 + L   ...    zeros up to offset 192
192     ...    the payload, ``stored_bytes`` long, to the end of the value
======  =====  ==========================================================================

No bit of a value is left unchecked: the header by its structure and by what the reader expects, the payload by
the checksum, which is XXH3-128 (canonical, big-endian) of the stored bytes. It is checked before they are decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Final

import msgspec
import xxhash

from tiered.errors import IntegrityError

HEADER_BYTES: Final = 192
"""Fixed, so that a reader can receive header and payload straight into their places."""

MAGIC: Final = b"TKV1"
FORMAT_VERSION: Final = 1
"""What is written. A later one keeps magic, version, the header's fixed size and the bound on the payload, so that
this reader can tell that it is one."""

OLDEST_VERSION: Final = 1
"""What is still read. An earlier one is damage: by the rules nobody in this cluster can read it."""

LATER: Final = "version"
"""The reason for what a later release has written: no good here, but good, and not this reader's to remove."""

CODEC_NONE: Final = "none"

_PREFIX: Final = struct.Struct("<4sHH")


class BlockHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a value says about itself; raw is before the codec, stored after it. Units: bytes."""

    block_hash: bytes
    scope_id: bytes
    codec: str
    raw_bytes: int
    stored_bytes: int
    checksum: bytes


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(BlockHeader)


def checksum_of(payload: memoryview) -> bytes:
    """16 bytes: XXH3-128 of the stored bytes."""
    digest: bytes = xxhash.xxh3_128_digest(payload)
    return digest


def encode_header(header: BlockHeader) -> bytes:
    """Exactly HEADER_BYTES; ValueError if the fields do not fit, which only a bug in the caller can cause."""
    encoded = _ENCODER.encode(header)
    if len(encoded) > HEADER_BYTES - _PREFIX.size:
        raise ValueError(f"a header map of {len(encoded)} bytes does not fit {HEADER_BYTES} bytes")
    return (_PREFIX.pack(MAGIC, FORMAT_VERSION, len(encoded)) + encoded).ljust(HEADER_BYTES, b"\0")


def decode_header(buffer: bytes | bytearray | memoryview) -> BlockHeader:
    """Read the first HEADER_BYTES of a value.

    Errors: IntegrityError with reason "magic", "version" or "header".
    """
    header = bytes(buffer[:HEADER_BYTES])
    if len(header) < HEADER_BYTES:
        raise IntegrityError("header", f"{len(header)} of {HEADER_BYTES} bytes")
    magic, version, length = _PREFIX.unpack_from(header)
    if magic != MAGIC:
        raise IntegrityError("magic", repr(magic))
    if version > FORMAT_VERSION:
        raise IntegrityError(LATER, f"{version}, this reader knows {FORMAT_VERSION}")
    if version < OLDEST_VERSION:
        raise IntegrityError("header", f"version {version}, this reader knows {OLDEST_VERSION} and later")
    end = _PREFIX.size + length
    if end > HEADER_BYTES or header.count(0, end) != HEADER_BYTES - end:
        raise IntegrityError("header", "bad length or padding")
    try:
        return _DECODER.decode(header[_PREFIX.size : end])
    except msgspec.MsgspecError as error:
        raise IntegrityError("header", str(error)) from error


def verify(
    header: BlockHeader,
    *,
    block_hash: bytes,
    scope_id: bytes,
    raw_bytes: int,
    payload: memoryview,
    codecs: Container[str] = (),
) -> None:
    """Compare a value with what was asked for, cheapest first. codecs: known ones beside ``none``, which shorten.

    Errors: IntegrityError with reason "hash", "scope", "version" (no known codec), "length" or "checksum".
    """
    if header.block_hash != block_hash:
        raise IntegrityError("hash", header.block_hash.hex())
    if header.scope_id != scope_id:
        raise IntegrityError("scope", header.scope_id.hex())
    if header.codec != CODEC_NONE and header.codec not in codecs:
        raise IntegrityError(LATER, f"codec {header.codec!r} is not known here")
    is_right_size = (
        header.stored_bytes == raw_bytes if header.codec == CODEC_NONE else header.stored_bytes < raw_bytes
    )
    if not (is_right_size and header.raw_bytes == raw_bytes and header.stored_bytes == payload.nbytes):
        lengths = f"raw {header.raw_bytes}, stored {header.stored_bytes}, got {payload.nbytes}"
        raise IntegrityError("length", f"{lengths}, expected {raw_bytes} as {header.codec}")
    if checksum_of(payload) != header.checksum:
        raise IntegrityError("checksum")
