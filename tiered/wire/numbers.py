"""Runs of small numbers as bytes: block ids, checksums, sources."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from tiered.types import BlockId, Source

CHECKSUM_BYTES: Final = 16
NO_CHECKSUM: Final = bytes(CHECKSUM_BYTES)

_SOURCES: Final = tuple(Source)
_SOURCE_CODES: Final = {source: code for code, source in enumerate(_SOURCES)}


def pack_ids(block_ids: Sequence[BlockId]) -> bytes:
    return array("I", block_ids).tobytes()


def unpack_ids(packed: bytes) -> list[BlockId]:
    ids = array("I")
    ids.frombytes(packed)
    return ids.tolist()  # type: ignore[return-value]  # NewType over int


def pack_checksums(checksums: Iterable[bytes | None]) -> bytes:
    return b"".join([checksum or NO_CHECKSUM for checksum in checksums])


def unpack_checksums(packed: bytes) -> list[bytes | None]:
    """ValueError when the length is no multiple of 16."""
    if len(packed) % CHECKSUM_BYTES:
        raise ValueError(f"{len(packed)} bytes are not a whole number of checksums")
    runs = (packed[i : i + CHECKSUM_BYTES] for i in range(0, len(packed), CHECKSUM_BYTES))
    return [None if run == NO_CHECKSUM else run for run in runs]


def pack_sources(sources: Iterable[Source]) -> bytes:
    return bytes(_SOURCE_CODES[source] for source in sources)


def unpack_sources(packed: bytes) -> list[Source]:
    """ValueError for a code that names no source."""
    if packed and max(packed) >= len(_SOURCES):
        raise ValueError(f"{max(packed)} is no source's code")
    return [_SOURCES[code] for code in packed]
