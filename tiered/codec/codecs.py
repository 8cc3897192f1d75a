"""The codecs by name, and which of them a block ends up with.

Owns the fall-backs: a block that the chosen codec cannot store is stored ``lossless``, and as it is where that does
not make it shorter. So a codec other than ``none`` always means fewer bytes, and whoever reads goes by the header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tiered.codec.codec import Codec
from tiered.codec.frame import CODEC_NONE
from tiered.codec.lossless import Lossless
from tiered.codec.quantized import E4M3Code, Int8Code, Quantized
from tiered.errors import ConfigError
from tiered.layout import KvLayout

_LOSSLESS: Final = Lossless()

CODECS: Final[Mapping[str, Codec]] = MappingProxyType(
    {codec.name: codec for codec in (_LOSSLESS, Quantized(E4M3Code()), Quantized(Int8Code()))}
)
"""All but ``none``, which nothing has to be done for."""

EXACT_CODECS: Final = frozenset(name for name, codec in CODECS.items() if codec.is_exact)

CODEC_NAMES: Final = (CODEC_NONE, *CODECS)


@dataclass(frozen=True, slots=True)
class Encoded:
    """What to store of a block, and under which codec."""

    codec: str
    stored: memoryview


def codec_for(name: str, layout: KvLayout) -> Codec | None:
    """The codec for blocks of this layout; None for ``none``.

    Errors: ConfigError for an unknown name, or a codec that such blocks cannot be stored with.
    """
    if name == CODEC_NONE:
        return None
    codec = CODECS.get(name)
    if codec is None:
        raise ConfigError(
            f"redis_codec: {name!r} is no codec; choose one of {', '.join(CODEC_NAMES)}", field="redis_codec"
        )
    refusal = codec.refusal(layout)
    if refusal:
        raise ConfigError(f"redis_codec: {refusal}; choose lossless or none", field="redis_codec")
    return codec


def encode(name: str, payload: memoryview, layout: KvLayout) -> Encoded:
    """A block's bytes as they are stored for a tenant that chose this codec, one of CODEC_NAMES."""
    if name != CODEC_NONE:
        for codec in dict.fromkeys((CODECS[name], _LOSSLESS)):
            stored = codec.encode(payload, layout)
            if stored is not None:
                return Encoded(codec.name, memoryview(stored))
    return Encoded(CODEC_NONE, payload)


def decode(name: str, stored: memoryview, out: memoryview, layout: KvLayout) -> None:
    """Fill ``out`` from what a codec of CODECS stored, which may lie in there. Errors: IntegrityError "decode"."""
    CODECS[name].decode(stored, out, layout)
