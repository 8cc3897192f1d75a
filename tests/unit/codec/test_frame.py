from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.codec.frame import (
    FORMAT_VERSION,
    HEADER_BYTES,
    OLDEST_VERSION,
    BlockHeader,
    checksum_of,
    decode_header,
    encode_header,
    verify,
)
from tiered.errors import IntegrityError

PAYLOAD = memoryview(bytes(range(256)) * 4)
HASH, SCOPE = b"h" * 32, b"s" * 32


def header(**changes: object) -> BlockHeader:
    plain = BlockHeader(
        block_hash=HASH,
        scope_id=SCOPE,
        codec="none",
        raw_bytes=PAYLOAD.nbytes,
        stored_bytes=PAYLOAD.nbytes,
        checksum=checksum_of(PAYLOAD),
    )
    return msgspec.structs.replace(plain, **changes)


def reason_to_refuse(buffer: bytes, payload: memoryview = PAYLOAD, **expected: object) -> str:
    asked = {"block_hash": HASH, "scope_id": SCOPE, "raw_bytes": PAYLOAD.nbytes} | expected
    with pytest.raises(IntegrityError) as refused:
        verify(decode_header(buffer), payload=payload, **asked)  # type: ignore[arg-type]
    return refused.value.reason


@given(raw=st.integers(0, 1 << 50), stored=st.integers(0, 1 << 50), codec=st.text("abz-09", max_size=8))
def test_a_header_of_any_size_comes_back_as_it_was(raw: int, stored: int, codec: str) -> None:
    written = header(raw_bytes=raw, stored_bytes=stored, codec=codec)
    encoded = encode_header(written)
    assert len(encoded) == HEADER_BYTES
    assert decode_header(encoded) == written


def test_a_good_value_is_accepted() -> None:
    verify(
        decode_header(encode_header(header())),
        block_hash=HASH,
        scope_id=SCOPE,
        raw_bytes=PAYLOAD.nbytes,
        payload=PAYLOAD,
    )


@pytest.mark.parametrize("offset", range(HEADER_BYTES))
def test_no_byte_of_the_header_can_change_unnoticed(offset: int) -> None:
    damaged = bytearray(encode_header(header()))
    damaged[offset] ^= 0x01
    assert reason_to_refuse(bytes(damaged))


@pytest.mark.parametrize(
    ("offset", "reason"), [(0, "magic"), (4, "version"), (6, "header"), (HEADER_BYTES - 1, "header")]
)
def test_damage_is_named(offset: int, reason: str) -> None:
    damaged = bytearray(encode_header(header()))
    damaged[offset] ^= 0x80
    assert reason_to_refuse(bytes(damaged)) == reason


def test_a_later_version_is_one_and_an_earlier_one_than_is_read_is_damage() -> None:
    foreign = bytearray(encode_header(header()))
    for version, reason in ((FORMAT_VERSION + 1, "version"), (0xFFFF, "version"), (OLDEST_VERSION - 1, "header")):
        foreign[4:6] = version.to_bytes(2, "little")
        assert reason_to_refuse(bytes(foreign)) == reason


def test_a_short_header_is_refused() -> None:
    assert reason_to_refuse(encode_header(header())[:-1]) == "header"


def test_what_was_not_asked_for_is_refused_by_name() -> None:
    good = encode_header(header())
    assert reason_to_refuse(good, block_hash=b"x" * 32) == "hash"
    assert reason_to_refuse(good, scope_id=b"x" * 32) == "scope"
    assert reason_to_refuse(encode_header(header(codec="zstd"))) == "version"
    assert reason_to_refuse(good, raw_bytes=1) == "length"
    assert reason_to_refuse(good, payload=PAYLOAD[:-1]) == "length"
    assert reason_to_refuse(encode_header(header(stored_bytes=1))) == "length"


def test_a_codec_counts_only_for_who_knows_it_and_only_if_it_shortens() -> None:
    stored = PAYLOAD[:100]
    encoded = header(codec="zip", stored_bytes=100, checksum=checksum_of(stored))
    asked = {"block_hash": HASH, "scope_id": SCOPE, "raw_bytes": PAYLOAD.nbytes, "codecs": {"zip"}}
    verify(decode_header(encode_header(encoded)), payload=stored, **asked)  # type: ignore[arg-type]
    good = encode_header(encoded)
    assert reason_to_refuse(good, stored) == "version"
    assert reason_to_refuse(good, stored, codecs={"other"}) == "version"
    assert reason_to_refuse(good, stored[:-1], codecs={"zip"}) == "length"
    assert reason_to_refuse(good, stored, codecs={"zip"}, raw_bytes=1) == "length"
    assert reason_to_refuse(encode_header(header(codec="zip")), codecs={"zip"}) == "length"
    damaged = bytearray(stored)
    damaged[50] ^= 1
    assert reason_to_refuse(good, memoryview(damaged), codecs={"zip"}) == "checksum"


@pytest.mark.parametrize("bit", [0, 511 * 8 + 3, 1024 * 8 - 1])
def test_a_changed_bit_of_the_payload_is_refused(bit: int) -> None:
    damaged = bytearray(PAYLOAD)
    damaged[bit // 8] ^= 1 << bit % 8
    assert reason_to_refuse(encode_header(header()), payload=memoryview(damaged)) == "checksum"


def test_fields_that_do_not_fit_are_a_bug_and_not_a_torn_header() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_header(header(codec="x" * 64))
