from __future__ import annotations

import pytest

from tiered.wire.auth import NONCE_BYTES, new_nonce, prove, proves

NONCE = b"n" * NONCE_BYTES


def test_who_knows_the_secret_proves_it() -> None:
    digest = prove("secret", NONCE, asking="a", serving="b")
    assert proves("secret", NONCE, digest, asking="a", serving="b")


@pytest.mark.parametrize(
    ("secret", "nonce", "asking", "serving"),
    [
        ("other", NONCE, "a", "b"),
        ("", NONCE, "a", "b"),
        ("secret", b"m" * NONCE_BYTES, "a", "b"),
        ("secret", NONCE, "c", "b"),
        ("secret", NONCE, "a", "c"),
        ("secret", NONCE, "b", "a"),
    ],
)
def test_a_proof_serves_one_question_only(secret: str, nonce: bytes, asking: str, serving: str) -> None:
    digest = prove(secret, nonce, asking=asking, serving=serving)
    assert not proves("secret", NONCE, digest, asking="a", serving="b")


@pytest.mark.parametrize("digest", [b"", b"x", bytes(32)])
def test_a_made_up_digest_proves_nothing(digest: bytes) -> None:
    assert not proves("secret", NONCE, digest, asking="a", serving="b")


def test_nonces_do_not_repeat() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
