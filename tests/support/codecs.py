"""Blocks for tests of codecs: of every layout and content, and what a codec may do to them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiered.codec.floats import from_float32, to_float32
from tiered.layout import DTYPE_BYTES, KvLayout

LARGEST_CODE = {"int8": 127.0, "fp8": 448.0}
ULP = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Half of the last bit, relative to the value."""

LEAST = {"float32": 2.0**-149, "bfloat16": 2.0**-133, "float16": 2.0**-24}
"""The smallest number there is."""


def layouts(dtypes: tuple[str, ...] = tuple(DTYPE_BYTES)) -> st.SearchStrategy[KvLayout]:
    return st.builds(
        KvLayout,
        n_layers=st.integers(1, 3),
        n_kv_heads=st.integers(1, 3),
        head_dim=st.integers(1, 9),
        dtype=st.sampled_from(dtypes),
        block_tokens=st.integers(1, 17),
        attention=st.sampled_from(["gqa", "mla"]),
    )


def block_of(values: NDArray[np.float32], layout: KvLayout) -> bytes:
    out = bytearray(layout.block_bytes)
    from_float32(values.astype(np.float32).copy(), memoryview(out), layout)
    return bytes(out)


def normal_block(layout: KvLayout, seed: int) -> bytes:
    """Like KV: each layer's keys and values of a size of their own."""
    random = np.random.default_rng(seed)
    n_layers, n_planes, *_ = layout.block_shape
    sizes = np.exp(random.standard_normal((n_layers, n_planes, 1, 1, 1)))
    return block_of((random.standard_normal(layout.block_shape) * sizes).astype(np.float32), layout)


def check_error(name: str, raw: bytes, decoded: bytes, layout: KvLayout) -> None:
    """Every element within what the codec promises, computed in float64 from the definition."""
    before = to_float32(memoryview(raw), layout).astype(np.float64)
    after = to_float32(memoryview(decoded), layout).astype(np.float64)
    scale = np.maximum(np.abs(before).max(axis=(2, 4), keepdims=True) / LARGEST_CODE[name], 2.0**-126)
    bound = scale / 2 if name == "int8" else np.maximum(np.abs(before) / 16, scale * 2.0**-10)
    rounding = np.abs(after) * ULP[layout.dtype] + LEAST[layout.dtype]
    slack = np.abs(before) * 2.0**-20 + scale * 2.0**-20  # of float32 arithmetic on the way
    assert (np.abs(before - after) <= bound + rounding + slack).all()
