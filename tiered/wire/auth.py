"""Proof that both ends of a peer connection know the cluster secret, without sending it.

A proof says who asks whom, under both sides' nonces and which of the two is speaking: one that was overheard, or got
out of an honest node by challenging it, is of no use on another connection, with another node, or to its own author.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

NONCE_BYTES: Final = 32

_LABEL: Final = b"tiered/peer/2\x00"


class Side(enum.Enum):
    """Who speaks."""

    ASKING = b"A"
    SERVING = b"S"


@dataclass(frozen=True, slots=True)
class Handshake:
    """What both sides know of one connection: their names and the nonces they sent."""

    asking: str
    serving: str
    asking_nonce: bytes
    serving_nonce: bytes

    def is_sound(self) -> bool:
        """Whether the nonces are as long as honest ones, so that none of their bytes can pass for something else."""
        return len(self.asking_nonce) == len(self.serving_nonce) == NONCE_BYTES


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def prove(secret: str, handshake: Handshake, side: Side) -> bytes:
    """HMAC-SHA-256 under the SHA-256 of the secret, over the label, the side, the serving and the asking nonce, the
    length of the asking name, that name, the serving name."""
    asking = handshake.asking.encode()
    text = b"".join(
        (
            _LABEL,
            side.value,
            handshake.serving_nonce,
            handshake.asking_nonce,
            len(asking).to_bytes(4, "little"),
            asking,
            handshake.serving.encode(),
        )
    )
    key = hashlib.sha256(secret.encode()).digest()  # HMAC alone tells no key from the same with zeros behind it
    return hmac.new(key, text, hashlib.sha256).digest()


def proves(secret: str, handshake: Handshake, side: Side, digest: bytes) -> bool:
    return handshake.is_sound() and hmac.compare_digest(prove(secret, handshake, side), digest)
