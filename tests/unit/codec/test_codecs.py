from __future__ import annotations

import struct
from typing import get_args

import msgspec
import numpy as np
import pytest
import zstandard

from tests.support.codecs import check_error, normal_block
from tiered.codec.codecs import CODEC_NAMES, CODECS, codec_for, decode, encode
from tiered.errors import ConfigError, IntegrityError
from tiered.layout import KvLayout
from tiered.tenancy.policy import LOSSY_CODECS, RedisCodec

BF16 = KvLayout(n_layers=4, n_kv_heads=2, head_dim=64, dtype="bfloat16")
BYTES = KvLayout(n_layers=2, n_kv_heads=2, head_dim=16, dtype="uint8")
BLOCK = normal_block(BF16, 1)
HALF = BF16.block_bytes // 2


def refusal(name: str, stored: bytes, layout: KvLayout = BF16) -> str:
    with pytest.raises(IntegrityError) as refused:
        decode(name, memoryview(stored), memoryview(bytearray(layout.block_bytes)), layout)
    assert refused.value.reason == "decode"
    return str(refused.value)


def back(name: str, raw: bytes, layout: KvLayout) -> bytes:
    encoded = encode(name, memoryview(raw), layout)
    assert encoded.codec == name
    out = bytearray(layout.block_bytes)
    decode(name, encoded.stored, memoryview(out), layout)
    return bytes(out)


def planes(*stored: bytes) -> bytes:
    return struct.pack(f"<{len(stored)}I", *map(len, stored)) + b"".join(stored)


def test_a_tenants_policy_may_name_every_codec_and_no_other() -> None:
    assert get_args(RedisCodec) == CODEC_NAMES
    assert {name for name, codec in CODECS.items() if not codec.is_exact} == LOSSY_CODECS


def test_an_unknown_codec_is_a_config_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'zip' is no codec; choose one of none, lossless, fp8, int8") as refused:
        codec_for("zip", BF16)
    assert refused.value.field == "redis_codec"


@pytest.mark.parametrize("name", sorted(LOSSY_CODECS))
@pytest.mark.parametrize("dtype", ["uint8", "float8_e4m3fn"])
def test_a_layout_that_cannot_be_quantized_is_a_config_error_with_the_reason(name: str, dtype: str) -> None:
    layout = KvLayout(n_layers=2, n_kv_heads=2, head_dim=16, dtype=dtype)
    with pytest.raises(ConfigError, match=f"{name} needs elements of .* and these are {dtype}; choose lossless"):
        codec_for(name, layout)
    assert codec_for("lossless", layout) is CODECS["lossless"]
    assert codec_for("none", layout) is None
    assert encode(name, memoryview(bytes(layout.block_bytes)), layout).codec == "lossless"


@pytest.mark.parametrize("name", sorted(LOSSY_CODECS))
def test_blocks_that_an_engine_packs_its_own_way_are_stored_exactly(name: str) -> None:
    layout = msgspec.structs.replace(BF16, interior="an engine's")
    with pytest.raises(ConfigError, match=f"{name} looks into the blocks, and these are packed as an engine's"):
        codec_for(name, layout)
    assert codec_for("lossless", layout) is CODECS["lossless"]
    assert encode(name, memoryview(bytes(layout.block_bytes)), layout).codec == "lossless"


@pytest.mark.parametrize(("dtype", "ratio"), [("bfloat16", 1.3), ("float32", 1.12), ("float16", 1.05)])
def test_lossless_makes_numbers_like_kv_fewer_bytes_and_noise_none(dtype: str, ratio: float) -> None:
    layout = KvLayout(n_layers=4, n_kv_heads=2, head_dim=64, dtype=dtype)
    raw = normal_block(layout, 2)
    stored = encode("lossless", memoryview(raw), layout).stored
    assert len(raw) / stored.nbytes > ratio
    assert back("lossless", raw, layout) == raw
    noise = np.random.default_rng(3).bytes(layout.block_bytes)
    encoded = encode("lossless", memoryview(noise), layout)
    assert (encoded.codec, bytes(encoded.stored)) == ("none", noise)


@pytest.mark.parametrize("name", sorted(LOSSY_CODECS))
def test_lossy_codecs_halve_a_block_and_keep_their_error(name: str) -> None:
    decoded = back(name, BLOCK, BF16)
    check_error(name, BLOCK, decoded, BF16)
    assert decoded != BLOCK
    scales = 4 * BF16.n_layers * BF16.n_planes * BF16.n_kv_heads
    assert encode(name, memoryview(BLOCK), BF16).stored.nbytes == HALF + scales


@pytest.mark.parametrize("name", sorted(LOSSY_CODECS))
def test_a_block_read_and_stored_again_changes_no_more(name: str) -> None:
    """A block that comes and goes must not wear out: the second round gives what the first gave, up to rounding."""
    layout = KvLayout(n_layers=4, n_kv_heads=2, head_dim=64, dtype="float32")
    first = back(name, normal_block(layout, 4), layout)
    second = np.frombuffer(back(name, first, layout), dtype="<f4")
    np.testing.assert_allclose(second, np.frombuffer(first, dtype="<f4"), rtol=1e-6)


@pytest.mark.parametrize("name", sorted(LOSSY_CODECS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_ends_of_a_dtype_are_stored_exactly_or_not_quantized(name: str, dtype: str) -> None:
    layout = KvLayout(n_layers=2, n_kv_heads=2, head_dim=16, dtype=dtype)
    largest = {"float32": b"\xff\xff\x7f\x7f", "bfloat16": b"\x7f\x7f", "float16": b"\xff\x7b"}[dtype]
    raw = bytes(layout.block_bytes - len(largest)) + largest
    encoded = encode(name, memoryview(raw), layout)
    assert encoded.codec == (name if dtype == "float16" else "lossless")
    out = bytearray(layout.block_bytes)
    decode(encoded.codec, encoded.stored, memoryview(out), layout)
    assert out == raw


def test_codes_of_fp8_are_e4m3() -> None:
    """Against the format's definition, code by code: scale 1 stores each representable number as itself."""
    layout = KvLayout(n_layers=1, n_kv_heads=1, head_dim=8, dtype="float32", attention="mla")
    magnitudes = [
        (m / 8) * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
        for e in range(16)
        for m in range(8)
        if (e, m) != (15, 7)
    ]
    values = np.zeros(128, dtype="<f4")
    values[: len(magnitudes)] = magnitudes
    for sign, signed in ((1, values), (-1, -values)):
        stored = encode("fp8", memoryview(signed.tobytes()), layout).stored
        assert struct.unpack("<f", stored[:4]) == (1.0,)
        codes = list(stored[4 : 4 + len(magnitudes)])
        assert codes == [code | (0x80 if sign < 0 else 0) for code in range(len(magnitudes))]
    assert back("fp8", values.tobytes(), layout) == values.tobytes()


def test_lossless_refuses_planes_that_are_not_the_blocks() -> None:
    frame = zstandard.ZstdCompressor().compress
    good = frame(bytes(HALF))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(HALF))
    assert "are no planes" in refusal("lossless", b"")
    assert "in a value of" in refusal("lossless", planes(good, good)[:-1])
    assert "in a value of" in refusal("lossless", planes(good, good) + b"x")
    assert "in a value of" in refusal("lossless", struct.pack("<2I", 0xFFFF_FFFF, 0xFFFF_FFFF))
    assert "expected" in refusal("lossless", planes(frame(bytes(HALF - 1)), good))
    assert "expected" in refusal("lossless", planes(unsized, good))
    assert refusal("lossless", planes(b"", good))
    assert refusal("lossless", planes(b"not a frame", good))
    assert refusal("lossless", planes(good[:-1], good))
    assert refusal("lossless", planes(good + good, good))
    assert refusal("lossless", planes(good + b"x", good))


def test_a_frame_that_claims_far_more_than_a_block_allocates_nothing() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    claims = bomb.replace(struct.pack("<I", 1 << 26), struct.pack("<I", 0xF000_0000), 1)
    assert zstandard.frame_content_size(claims) > 1 << 31
    for plane in (bomb, claims):
        assert "expected" in refusal("lossless", planes(plane, bytes(HALF)))


@pytest.mark.parametrize("name", sorted(LOSSY_CODECS))
def test_lossy_codecs_refuse_what_no_block_gives(name: str) -> None:
    stored = bytes(encode(name, memoryview(BLOCK), BF16).stored)
    scale_bytes = len(stored) - HALF
    assert "are no" in refusal(name, stored[:-1])
    assert "are no" in refusal(name, stored + b"x")
    for scale in (float("nan"), float("inf"), -1.0, 0.0, 2.0**126):
        assert "a scale" in refusal(name, struct.pack("<f", scale) + stored[4:])
    no_code = {"int8": b"\x80", "fp8": b"\xff"}[name]
    assert "a code" in refusal(name, stored[:scale_bytes] + no_code + stored[scale_bytes + 1 :])
    assert "are no" in refusal(name, stored, BYTES)
