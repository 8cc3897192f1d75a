"""``fp8`` and ``int8``: one byte an element, and a scale for each layer, plane (K or V) and head of a block. Lossy.

====================================  ==============================================================
bytes                                 content
====================================  ==============================================================
4 a (layer, plane, head)              the scales, float32 little-endian
1 an element, in the block's order    the codes: value = scale * code
====================================  ==============================================================

A scale is the largest magnitude of its group over the largest code, so no value is clipped. ``int8`` codes are -127
to 127: an error of at most half a scale anywhere. ``fp8`` codes are E4M3 (sign, 4 bits of exponent, 3 of mantissa, at
most 448): an error of at most a sixteenth of the value, or of 2^-10 of a scale where that is more. The decoded value
is then rounded to the layout's dtype.

A block with a NaN, an infinity or anything near the end of float32 is not encoded at all.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tiered.codec.floats import FLOAT_DTYPES, from_float32, to_float32
from tiered.errors import IntegrityError
from tiered.layout import KvLayout

MAGNITUDE_END: Final = {"float32": 2.0**126, "bfloat16": 2.0**126, "float16": 65_505.0}
"""No decoded value reaches it, so rounding to the dtype never gives an infinity. The largest float16 is 65,504."""

_SCALE_LEAST: Final = np.float32(2.0**-126)
"""The smallest normal float32: the inverse of a smaller scale would be an infinity."""

_Floats = NDArray[np.float32]


class _Code(Protocol):
    """How one byte stands for a number."""

    name: str
    largest: float

    def of(self, values: _Floats) -> NDArray[np.uint8]:
        """The nearest codes of values up to ``largest`` in magnitude; the values are lost."""

    def values(self, codes: NDArray[np.uint8]) -> _Floats | None:
        """New memory; None if one of them is no code."""


class Quantized:
    """One code per element, times a scale per group."""

    is_exact: Final = False

    def __init__(self, code: _Code) -> None:
        self._code = code

    @property
    def name(self) -> str:
        return self._code.name

    def refusal(self, layout: KvLayout) -> str:
        if layout.interior:
            return f"{self.name} looks into the blocks, and these are packed as {layout.interior}"
        if layout.dtype in FLOAT_DTYPES:
            return ""
        return f"{self.name} needs elements of {', '.join(FLOAT_DTYPES)}, and these are {layout.dtype}"

    def encode(self, payload: memoryview, layout: KvLayout) -> bytes | None:
        n_scales = _n_scales(layout)
        n_elements = np.prod(layout.block_shape, dtype=np.int64)
        if self.refusal(layout) or 4 * n_scales + n_elements >= payload.nbytes:
            return None
        values = to_float32(payload, layout)
        largest = np.maximum(values.max(axis=(2, 4)), -values.min(axis=(2, 4)))
        if not (largest < MAGNITUDE_END[layout.dtype]).all():  # also where it is a NaN
            return None
        scales = np.maximum(largest / np.float32(self._code.largest), _SCALE_LEAST)
        values *= (np.float32(1.0) / scales)[:, :, None, :, None]
        encoded: bytes = scales.astype("<f4").tobytes() + self._code.of(values).tobytes()
        return encoded

    def decode(self, stored: memoryview, out: memoryview, layout: KvLayout) -> None:
        scale_bytes = 4 * _n_scales(layout)
        n_elements = int(np.prod(layout.block_shape, dtype=np.int64))
        if self.refusal(layout) or stored.nbytes != scale_bytes + n_elements:
            raise IntegrityError("decode", f"{stored.nbytes} bytes are no {self.name} block of {layout.describe()}")
        shape = (layout.n_layers, layout.n_planes, layout.n_kv_heads)
        scales = np.frombuffer(stored[:scale_bytes], dtype="<f4").astype(np.float32).reshape(shape)
        end = MAGNITUDE_END[layout.dtype] * (1 + 2.0**-20)  # a scale was rounded to float32
        if not ((scales >= _SCALE_LEAST) & (scales.astype(np.float64) * self._code.largest < end)).all():
            raise IntegrityError("decode", "a scale that no block has")
        codes = np.frombuffer(stored[scale_bytes:], dtype=np.uint8)
        values = self._code.values(codes)
        if values is None:
            raise IntegrityError("decode", "a code that stands for no number")
        by_group = values.reshape(layout.block_shape)
        by_group *= scales[:, :, None, :, None]
        from_float32(values, out, layout)


def _n_scales(layout: KvLayout) -> int:
    return layout.n_layers * layout.n_planes * layout.n_kv_heads


class Int8Code:
    """Whole numbers from -127 to 127."""

    name = "int8"
    largest = 127.0

    def of(self, values: _Floats) -> NDArray[np.uint8]:
        np.rint(values, out=values)
        return values.astype(np.int8).view(np.uint8)

    def values(self, codes: NDArray[np.uint8]) -> _Floats | None:
        numbers = codes.view(np.int8)
        return None if numbers.min() == -128 else numbers.astype(np.float32)


class E4M3Code:
    """E4M3: a float32 times 2^-120 has its exponent where a code has it, denormal codes included, 20 bits higher."""

    name = "fp8"
    largest = 448.0

    _DOWN: Final = np.float32(2.0**-120)
    _UP: Final = np.float32(2.0**120)
    _HALF: Final = np.uint32(1 << 19)
    _SHIFT: Final = np.uint32(20)
    _NO_NUMBER: Final = np.uint8(0x7F)

    def of(self, values: _Floats) -> NDArray[np.uint8]:
        values *= self._DOWN
        bits = values.view(np.uint32)
        bits += self._HALF
        bits >>= self._SHIFT
        signs = (bits >> np.uint32(4)).astype(np.uint8)
        signs &= np.uint8(0x80)
        signs |= bits.astype(np.uint8) & np.uint8(0x7F)
        return signs

    def values(self, codes: NDArray[np.uint8]) -> _Floats | None:
        if ((codes & self._NO_NUMBER) == self._NO_NUMBER).any():
            return None
        bits = codes.view(np.int8).astype(np.int32)  # the sign is copied all the way up
        bits <<= np.int32(20)
        bits &= np.int32(-0x7810_0000)  # the sign, 4 bits of exponent and 3 of mantissa
        values = bits.view(np.float32)
        values *= self._UP
        return values
