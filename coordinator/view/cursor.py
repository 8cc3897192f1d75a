"""How far somebody has read of what happened: a place in each source, as one text that a URL can hold.

Whoever gets such a text back from outside gets anything: it is bounded and checked before it is believed.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Final

import msgspec

CURSOR_CHARS_MAX: Final = 16_384
_PLAIN_BYTES_MAX: Final = 1 << 18
_PLACE_MAX: Final = (1 << 63) - 1
"""Beyond what any source can count to, and within what our messages and Redis can say."""


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """nodes: per node the number of its last event read. redis: as :data:`tiered.cluster.why.Reached`."""

    nodes: dict[str, int] = {}
    redis: tuple[tuple[int, int], ...] = ()


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Reached)


def encode_cursor(reached: Reached) -> str:
    return base64.urlsafe_b64encode(zlib.compress(_ENCODER.encode(reached), 9)).decode()


def decode_cursor(text: str) -> Reached:
    """Errors: ValueError for what no answer ever held."""
    try:
        packed = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(packed, _PLAIN_BYTES_MAX)
        if not unpacking.eof:
            raise ValueError("it is too long")
        reached = _DECODER.decode(plain)
    except (UnicodeEncodeError, binascii.Error, zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from None
    places = (*reached.nodes.values(), *(number for place in reached.redis for number in place))
    if not all(0 <= place <= _PLACE_MAX for place in places):
        raise ValueError(f"a place is a number from 0 to {_PLACE_MAX}")
    return reached
