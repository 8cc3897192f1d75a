"""Proof that a peer knows the cluster secret, without sending it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

NONCE_BYTES: Final = 32


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def prove(secret: str, nonce: bytes, *, asking: str, serving: str) -> bytes:
    """HMAC-SHA-256 over the nonce and both names, so that a proof serves one question only."""
    text = b"tiered/peer/1\x00" + nonce + f"{asking}\x00{serving}".encode()
    return hmac.new(secret.encode(), text, hashlib.sha256).digest()


def proves(secret: str, nonce: bytes, digest: bytes, *, asking: str, serving: str) -> bool:
    return hmac.compare_digest(prove(secret, nonce, asking=asking, serving=serving), digest)
