"""Bytes to messages and back; no I/O.

A frame is ``u32 length of the rest || u8 wire version || MessagePack``, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from tiered.errors import ProtocolError, VersionMismatch
from tiered.wire.messages import (
    FRAME_BYTES_MAX,
    WIRE_VERSION,
    EngineReply,
    EngineRequest,
    Failure,
    Message,
    PeerReply,
    PeerRequest,
)

PREFIX: Final = struct.Struct("<IB")
M = TypeVar("M")

_encode = msgspec.msgpack.Encoder().encode


def encode(message: Message) -> bytes:
    """One frame."""
    body = _encode(message)
    return PREFIX.pack(len(body) + 1, WIRE_VERSION) + body


def body_length(prefix: bytes | bytearray | memoryview) -> int:
    """Bytes that follow a frame's prefix. Errors: VersionMismatch; ProtocolError for an absurd length."""
    length, version = PREFIX.unpack(prefix)
    if not 1 < length <= FRAME_BYTES_MAX:  # first: noise is no version
        # Of noise it is whatever bytes stand there, which may be somebody's, so it is not said.
        raise ProtocolError(f"a frame's length is outside 2..{FRAME_BYTES_MAX}")
    if version != WIRE_VERSION:
        raise VersionMismatch(seen=version, spoken=WIRE_VERSION)
    return int(length) - 1


def parting_word(error: VersionMismatch) -> bytes:
    """What who speaks another version is told before the connection ends: the frame's own version says enough, since
    every version's frames begin alike."""
    return encode(Failure("version", str(error)))


class Codec(Generic[M]):
    """Decodes the bodies of one direction of one protocol."""

    def __init__(self, message_type: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(message_type)

    def decode(self, body: bytes | bytearray | memoryview) -> M:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ProtocolError(f"not a message of this protocol: {error}") from error


ENGINE_REQUESTS: Final[Codec[EngineRequest]] = Codec(EngineRequest)
ENGINE_REPLIES: Final[Codec[EngineReply]] = Codec(EngineReply)
PEER_REQUESTS: Final[Codec[PeerRequest]] = Codec(PeerRequest)
PEER_REPLIES: Final[Codec[PeerReply]] = Codec(PeerReply)


class FrameReader(Generic[M]):
    """Feed it whatever arrived; it yields the messages that are whole."""

    def __init__(self, codec: Codec[M]) -> None:
        self._codec = codec
        self._buffer = bytearray()

    @property
    def is_amid_one(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[M]:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= PREFIX.size:
            end = PREFIX.size + body_length(buffer[: PREFIX.size])
            if len(buffer) < end:
                return
            body = bytes(buffer[PREFIX.size : end])
            del buffer[:end]
            yield self._codec.decode(body)
