"""Frames: whatever arrives, in whatever pieces, is the message that was sent or a ProtocolError."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import ProtocolError, VersionMismatch
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.types import BlockId, Source
from tiered.wire.framing import (
    ENGINE_REPLIES,
    ENGINE_REQUESTS,
    PEER_REPLIES,
    PEER_REQUESTS,
    PREFIX,
    Codec,
    FrameReader,
    body_length,
    encode,
)
from tiered.wire.messages import (
    FRAME_BYTES_MAX,
    WIRE_VERSION,
    Allocate,
    Allocated,
    Attach,
    Attached,
    Challenge,
    Commit,
    Committed,
    Failure,
    Fetch,
    Holding,
    Load,
    Loaded,
    Match,
    Matched,
    Message,
    Open,
    Opened,
    Proof,
    Release,
    Released,
    Welcome,
)
from tiered.wire.numbers import (
    pack_checksums,
    pack_ids,
    pack_sources,
    unpack_checksums,
    unpack_ids,
    unpack_sources,
)

LAYOUT = KvLayout(n_layers=2, n_kv_heads=1, head_dim=8, dtype="bfloat16")
SCOPE = ModelScope(model="m", weights_version="w", layout=LAYOUT)
MESSAGES: dict[str, tuple[Codec[object], list[Message]]] = {
    "engine requests": (
        ENGINE_REQUESTS,  # type: ignore[dict-item]
        [
            Attach(scope=SCOPE, engine="e", pid=1),
            Match("red", b"s" * 32, b"h" * 64, 33),
            Load(1, 0.5),
            Open("red", b"s" * 32, b""),
            Allocate(1, 64, 0.25),
            Commit(1, bytes(32)),
            Release(1, 16),
        ],
    ),
    "engine replies": (
        ENGINE_REPLIES,  # type: ignore[dict-item]
        [
            Attached("n", 1, LAYOUT, 8, "cpu", 60.0),
            Matched(1, b"\0" * 8, bytes(32), 1, 2),
            Loaded(b"", b"", b""),
            Opened(1),
            Allocated(3, b"\0" * 4, "none"),
            Committed(1),
            Released(held=True),
            Failure("lease", "it ended"),
        ],
    ),
    "peer requests": (PEER_REQUESTS, [Proof("n", b"d" * 32, b"x" * 32), Fetch(1, b"s" * 32, b"h" * 64)]),  # type: ignore[dict-item]
    "peer replies": (
        PEER_REPLIES,  # type: ignore[dict-item]
        [Challenge("n", 1, b"x" * 32), Welcome(b"d" * 32), Holding((0, 2), 512), Failure("epoch", "old")],
    ),
}
every_protocol = pytest.mark.parametrize(("codec", "messages"), list(MESSAGES.values()), ids=list(MESSAGES))
every_codec = pytest.mark.parametrize("codec", [codec for codec, _ in MESSAGES.values()], ids=list(MESSAGES))


def frame(body: bytes, *, version: int = WIRE_VERSION, length: int | None = None) -> bytes:
    return struct.pack("<IB", len(body) + 1 if length is None else length, version) + body


@every_protocol
def test_messages_fed_byte_by_byte_come_out_whole(codec: Codec[object], messages: list[Message]) -> None:
    reader, seen = FrameReader(codec), []
    for byte in b"".join(encode(message) for message in messages):
        seen.extend(reader.feed(bytes([byte])))
    assert seen == messages


@every_protocol
def test_messages_fed_at_once_come_out_one_by_one(codec: Codec[object], messages: list[Message]) -> None:
    assert list(FrameReader(codec).feed(b"".join(encode(message) for message in messages))) == messages


@given(cuts=st.lists(st.integers(0, 400), max_size=6))
def test_where_the_pieces_end_does_not_matter(cuts: list[int]) -> None:
    codec, messages = MESSAGES["engine requests"]
    data = b"".join(encode(message) for message in messages)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = FrameReader(codec)
    seen = [m for start, end in itertools.pairwise(edges) for m in reader.feed(data[start:end])]
    assert seen == messages


@every_codec
@given(data=st.binary(max_size=80))
def test_random_bytes_are_refused_or_awaited_and_never_crash(codec: Codec[object], data: bytes) -> None:
    with suppress(ProtocolError):
        list(FrameReader(codec).feed(data))


@every_codec
@given(body=st.binary(min_size=1, max_size=80))
def test_a_random_body_is_a_message_or_refused(codec: Codec[object], body: bytes) -> None:
    try:
        (message,) = FrameReader(codec).feed(frame(body))
    except ProtocolError:
        return
    assert isinstance(message, Message)


@every_protocol
@given(data=st.data())
def test_a_damaged_frame_never_crashes_the_reader(
    codec: Codec[object], messages: list[Message], data: st.DataObject
) -> None:
    damaged = bytearray(encode(data.draw(st.sampled_from(messages))))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(ProtocolError):
        list(FrameReader(codec).feed(bytes(damaged)))


@pytest.mark.parametrize("version", [0, WIRE_VERSION + 1, 255])
def test_a_foreign_version_is_refused(version: int) -> None:
    with pytest.raises(VersionMismatch, match=f"wire version {version}, this side {WIRE_VERSION}"):
        list(FrameReader(PEER_REPLIES).feed(frame(msgspec.msgpack.encode(["Welcome"]), version=version)))


@pytest.mark.parametrize("length", [0, 1, FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_an_absurd_length_is_refused_before_its_bytes_are_awaited(length: int) -> None:
    with pytest.raises(ProtocolError, match="outside 2"):
        list(FrameReader(PEER_REPLIES).feed(frame(b"", length=length)))


def test_the_longest_allowed_frame_is_awaited() -> None:
    assert body_length(PREFIX.pack(FRAME_BYTES_MAX, WIRE_VERSION)) == FRAME_BYTES_MAX - 1


def test_an_announced_length_costs_no_memory_before_its_bytes_come() -> None:
    tracemalloc.start()
    try:
        list(FrameReader(PEER_REPLIES).feed(frame(b"", length=FRAME_BYTES_MAX)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("codec", [PEER_REPLIES, ENGINE_REPLIES])
def test_a_body_nested_without_end_is_refused(codec: Codec[object]) -> None:
    bomb = b"\x92\xa7Welcome" + b"\x91" * 200_000 + b"\x90"
    with pytest.raises(ProtocolError):
        codec.decode(bomb)


def test_a_reader_stays_broken_after_a_broken_frame() -> None:
    reader = FrameReader(PEER_REPLIES)
    for _ in range(2):
        with pytest.raises(ProtocolError):
            list(reader.feed(frame(b"", length=0)))


def test_requests_are_no_replies() -> None:
    with pytest.raises(ProtocolError):
        list(FrameReader(ENGINE_REPLIES).feed(encode(Load(1, 1.0))))


@given(ids=st.lists(st.integers(0, 2**32 - 1)))
def test_ids_come_back(ids: list[int]) -> None:
    packed = pack_ids([BlockId(i) for i in ids])
    assert unpack_ids(packed) == ids
    assert packed == struct.pack(f"<{len(ids)}I", *ids)


@given(checksums=st.lists(st.none() | st.binary(min_size=16, max_size=16).filter(any)))
def test_checksums_come_back_and_zeros_stand_for_none(checksums: list[bytes | None]) -> None:
    assert unpack_checksums(pack_checksums(checksums)) == checksums


@given(sources=st.lists(st.sampled_from(list(Source))))
def test_sources_come_back(sources: list[Source]) -> None:
    assert unpack_sources(pack_sources(sources)) == sources


def test_torn_or_unknown_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="item size"):
        unpack_ids(b"\0" * 5)
    with pytest.raises(ValueError, match="whole number"):
        unpack_checksums(b"\0" * 17)
    with pytest.raises(ValueError, match="source"):
        unpack_sources(b"\x00\x03")
