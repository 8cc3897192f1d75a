"""A block's elements as float32 and back, for codecs that compute with them. Owns the rounding of each dtype."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tiered.layout import KvLayout

FLOAT_DTYPES: Final = ("float32", "bfloat16", "float16")

_BFLOAT16_SHIFT: Final = np.uint32(16)
_BFLOAT16_HALF: Final = np.uint32(0x8000)
"""Half of the last bit that a bfloat16 keeps."""


def to_float32(payload: memoryview, layout: KvLayout) -> NDArray[np.float32]:
    """New memory of the block's shape; exact for each of FLOAT_DTYPES."""
    if layout.dtype == "bfloat16":
        bits = np.frombuffer(payload, dtype="<u2").astype(np.uint32)
        bits <<= _BFLOAT16_SHIFT
        values = bits.view(np.float32)
    else:
        values = np.frombuffer(payload, dtype="<f4" if layout.dtype == "float32" else "<f2").astype(np.float32)
    return values.reshape(layout.block_shape)


def from_float32(values: NDArray[np.float32], out: memoryview, layout: KvLayout) -> None:
    """Round to the nearest of the layout's dtype, into ``out``. ``values`` are lost, and small enough to fit."""
    flat = values.reshape(-1)
    if layout.dtype == "bfloat16":
        bits = flat.view(np.uint32)
        bits += _BFLOAT16_HALF
        np.right_shift(bits, _BFLOAT16_SHIFT, out=np.frombuffer(out, dtype="<u2"), casting="unsafe")
    else:
        np.copyto(np.frombuffer(out, dtype="<f4" if layout.dtype == "float32" else "<f2"), flat, casting="same_kind")
