"""Codecs on blocks of any shape, dtype and content: exact ones give every bit back, lossy ones keep their bound."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.codecs import block_of, check_error, layouts
from tiered.codec.codecs import CODECS, decode, encode
from tiered.codec.floats import FLOAT_DTYPES, to_float32
from tiered.errors import IntegrityError
from tiered.layout import KvLayout

LOSSY = ("fp8", "int8")

NO_NUMBERS = {
    "float32": [struct.pack("<I", bits) for bits in (0x7F80_0000, 0xFF80_0000, 0x7F80_0001)],
    "bfloat16": [struct.pack("<H", bits) for bits in (0x7F80, 0xFF80, 0x7F81)],
    "float16": [struct.pack("<H", bits) for bits in (0x7C00, 0xFC00, 0x7C01)],
}
"""Both infinities, and a NaN that signals."""


def decoded(name: str, stored: bytes | memoryview, layout: KvLayout) -> bytes:
    """Into another place, and over itself, as it is received from Redis."""
    out = bytearray(b"\xa5" * layout.block_bytes)
    decode(name, memoryview(bytes(stored)), memoryview(out), layout)
    in_place = bytearray(stored).ljust(layout.block_bytes, b"\xa5")
    decode(name, memoryview(in_place)[: len(stored)], memoryview(in_place), layout)
    assert in_place == out
    return bytes(out)


def refusal(name: str, stored: bytes, out: memoryview, layout: KvLayout) -> str:
    """Why the codec refuses to decode this; empty if it does not."""
    try:
        decode(name, memoryview(stored), out, layout)
    except IntegrityError as error:
        return error.reason
    return ""


@st.composite
def any_blocks(draw: st.DrawFn, dtypes: tuple[str, ...] | None = None) -> tuple[KvLayout, bytes]:
    """Any bytes at all: NaNs of both kinds, infinities, denormals; runs and zeros too."""
    layout = draw(layouts(dtypes) if dtypes else layouts())
    seed = draw(st.binary(min_size=1, max_size=64))
    size = layout.block_bytes
    if draw(st.booleans()):
        return layout, (seed * (size // len(seed) + 1))[:size]
    return layout, np.random.default_rng(list(seed)).bytes(size)


@st.composite
def finite_blocks(draw: st.DrawFn) -> tuple[KvLayout, bytes]:
    """Of any magnitude that the dtype has, with zeros of both signs and denormals, group by group."""
    layout = draw(layouts(FLOAT_DTYPES))
    exponents = (-20, 15) if layout.dtype == "float16" else (-140, 125)
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    shape = layout.block_shape
    of_group = random.integers(exponents[0], exponents[1] + 1, (*shape[:2], 1, shape[3], 1))
    low = draw(st.sampled_from([0, 3, 20]))
    values = random.uniform(-1, 1, shape) * np.exp2(of_group - random.integers(0, low + 1, shape))
    values *= random.random(shape) >= draw(st.sampled_from([0.0, 0.5, 1.0]))
    return layout, block_of(values.astype(np.float32), layout)


@given(any_blocks(), st.sampled_from([*CODECS, "none"]))
@settings(max_examples=300, deadline=None)
def test_whatever_a_block_holds_it_is_stored_shorter_or_as_it_is(block: tuple[KvLayout, bytes], name: str) -> None:
    layout, raw = block
    encoded = encode(name, memoryview(raw), layout)
    if encoded.codec == "none":
        assert encoded.stored == raw
        return
    assert encoded.stored.nbytes < len(raw)
    back = decoded(encoded.codec, encoded.stored, layout)
    if CODECS[encoded.codec].is_exact:
        assert back == raw
    else:
        assert encoded.codec == name
        check_error(name, raw, back, layout)


@given(any_blocks())
@settings(max_examples=300, deadline=None)
def test_lossless_gives_every_bit_back(block: tuple[KvLayout, bytes]) -> None:
    layout, raw = block
    stored = CODECS["lossless"].encode(memoryview(raw), layout)
    assert stored is None or decoded("lossless", stored, layout) == raw


@given(finite_blocks(), st.sampled_from(LOSSY))
@settings(max_examples=300, deadline=None)
def test_lossy_errors_are_bounded_by_the_scale(block: tuple[KvLayout, bytes], name: str) -> None:
    layout, raw = block
    stored = CODECS[name].encode(memoryview(raw), layout)
    if stored is not None:
        check_error(name, raw, decoded(name, stored, layout), layout)


@given(finite_blocks(), st.sampled_from(LOSSY), st.integers(0, 2), st.integers(0))
@settings(max_examples=100, deadline=None)
def test_what_is_no_number_is_never_quantized(
    block: tuple[KvLayout, bytes], name: str, kind: int, where: int
) -> None:
    layout, finite = block
    poison = NO_NUMBERS[layout.dtype][kind]
    at = where % (len(finite) // len(poison)) * len(poison)
    raw = finite[:at] + poison + finite[at + len(poison) :]
    assert CODECS[name].encode(memoryview(raw), layout) is None
    encoded = encode(name, memoryview(raw), layout)
    assert encoded.codec in ("lossless", "none")
    assert encoded.codec == "none" or decoded(encoded.codec, encoded.stored, layout) == raw


@given(layouts(), st.sampled_from(list(CODECS)), st.binary(max_size=600))
@settings(max_examples=300, deadline=None)
def test_foreign_bytes_are_refused_or_fill_the_block_exactly(layout: KvLayout, name: str, stored: bytes) -> None:
    out = bytearray(layout.block_bytes + 16)
    with memoryview(out) as view:
        reason = refusal(name, stored, view[: layout.block_bytes], layout)
    assert reason in ("", "decode")
    assert out[layout.block_bytes :] == bytes(16)


@given(any_blocks(), st.sampled_from(list(CODECS)), st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_bytes_raise_nothing_but_an_integrity_error(
    block: tuple[KvLayout, bytes], name: str, data: st.DataObject
) -> None:
    """Without the checksum, which is what finds such damage: the codec itself must at least stay in its bounds."""
    layout, raw = block
    stored = CODECS[name].encode(memoryview(raw), layout)
    if stored is None:
        return
    damaged = bytearray(stored)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(-3, 3))
    damaged = damaged[:cut] if cut < 0 else damaged + bytes(cut)
    out = bytearray(layout.block_bytes)
    reason = refusal(name, bytes(damaged), memoryview(out), layout)
    assert reason in ("", "decode")
    if not reason and name in LOSSY:
        assert np.isfinite(to_float32(memoryview(out), layout)).all()


@pytest.mark.parametrize("name", list(CODECS))
def test_a_block_that_ends_at_its_buffer_is_not_written_beyond(name: str) -> None:
    layout = KvLayout(n_layers=2, n_kv_heads=2, head_dim=8, dtype="bfloat16")
    raw = bytes(layout.block_bytes)
    encoded = encode(name, memoryview(raw), layout)
    assert encoded.codec == name
    around = bytearray(b"\xa5" * (layout.block_bytes + 64))
    decode(name, encoded.stored, memoryview(around)[32:-32], layout)
    assert bytes(around) == b"\xa5" * 32 + raw + b"\xa5" * 32
