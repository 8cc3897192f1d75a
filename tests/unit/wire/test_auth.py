"""A proof is good for one connection, one pair of nodes and one direction; nothing overheard serves anybody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiered.wire.auth import NONCE_BYTES, Handshake, Side, new_nonce, prove, proves

HANDSHAKE = Handshake("a", "b", asking_nonce=b"n" * NONCE_BYTES, serving_nonce=b"m" * NONCE_BYTES)


@pytest.mark.parametrize("side", list(Side))
def test_who_knows_the_secret_proves_it(side: Side) -> None:
    assert proves("secret", HANDSHAKE, side, prove("secret", HANDSHAKE, side))


@pytest.mark.parametrize("secret", ["other", "", "secret\0"])
def test_another_secret_proves_nothing(secret: str) -> None:
    assert not proves("secret", HANDSHAKE, Side.ASKING, prove(secret, HANDSHAKE, Side.ASKING))


@pytest.mark.parametrize(
    "other",
    [
        replace(HANDSHAKE, serving_nonce=b"x" * NONCE_BYTES),
        replace(HANDSHAKE, asking_nonce=b"x" * NONCE_BYTES),
        replace(HANDSHAKE, serving_nonce=HANDSHAKE.asking_nonce, asking_nonce=HANDSHAKE.serving_nonce),
        replace(HANDSHAKE, asking="c"),
        replace(HANDSHAKE, serving="c"),
        replace(HANDSHAKE, asking="b", serving="a"),
        replace(HANDSHAKE, asking="ab", serving=""),
        replace(HANDSHAKE, asking="", serving="ab"),
    ],
)
def test_a_proof_serves_one_question_only(other: Handshake) -> None:
    for side in Side:
        assert not proves("secret", HANDSHAKE, side, prove("secret", other, side))


def test_a_proof_cannot_be_turned_round() -> None:
    """Else a server that knows nothing could send the asker's own proof back to it."""
    mirror = Handshake("a", "a", asking_nonce=b"n" * NONCE_BYTES, serving_nonce=b"n" * NONCE_BYTES)
    assert not proves("secret", mirror, Side.SERVING, prove("secret", mirror, Side.ASKING))


@pytest.mark.parametrize("length", [0, NONCE_BYTES - 1, NONCE_BYTES + 1, 1_000])
def test_a_nonce_of_another_length_is_no_nonce(length: int) -> None:
    """Bytes of a longer one could pass for a name, and one of none repeats."""
    for odd in (replace(HANDSHAKE, serving_nonce=bytes(length)), replace(HANDSHAKE, asking_nonce=bytes(length))):
        assert not odd.is_sound()
        assert not proves("secret", odd, Side.ASKING, prove("secret", odd, Side.ASKING))


@pytest.mark.parametrize("digest", [b"", b"x", bytes(32)])
def test_a_made_up_digest_proves_nothing(digest: bytes) -> None:
    assert not proves("secret", HANDSHAKE, Side.ASKING, digest)


def test_nonces_do_not_repeat() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
