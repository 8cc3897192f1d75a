"""The certificate: what stops the start, with which sentence; and that what passes is served."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from coordinator.server.tls import tls_context
from coordinator.settings import HttpSettings
from tiered.errors import ConfigError

Files = tuple[Path, Path]


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(ca: trustme.CA, tmp_path: Path) -> Files:
    return write(ca.issue_cert("localhost", "127.0.0.1"), tmp_path)


def write(leaf: trustme.LeafCert, folder: Path) -> Files:
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    return cert, key


def context(files: Files) -> ssl.SSLContext | None:
    return tls_context(HttpSettings(tls_cert=files[0], tls_key=files[1]))


def test_without_files_there_is_no_tls() -> None:
    assert tls_context(HttpSettings()) is None


def test_a_good_certificate_is_served_from_tls_1_2_on(files: Files) -> None:
    made = context(files)
    assert made is not None
    assert made.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_chain_with_an_intermediate_is_served(ca: trustme.CA, tmp_path: Path) -> None:
    assert context(write(ca.create_child_ca().issue_cert("localhost"), tmp_path)) is not None


def _missing(files: Files) -> None:
    files[0].unlink()


def _directory(files: Files) -> None:
    files[1].unlink()
    files[1].mkdir()


def _no_pem(files: Files) -> None:
    files[0].write_bytes(b"\x00\xff nothing")


def _no_key(files: Files) -> None:
    files[1].write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", encoding="ascii")


def _empty_key(files: Files) -> None:
    files[1].write_bytes(b"")


def _only_key(files: Files) -> None:
    files[0].write_bytes(files[1].read_bytes())


def _of_another(files: Files) -> None:
    other = trustme.CA().issue_cert("localhost")
    files[1].write_bytes(other.private_key_pem.bytes())


def _expired(files: Files) -> None:
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    write(trustme.CA().issue_cert("localhost", not_after=past), files[0].parent)


def _in_the_future(files: Files) -> None:
    begins = datetime.datetime(2900, 1, 1, tzinfo=datetime.UTC)
    ends = begins + datetime.timedelta(days=1)
    write(trustme.CA().issue_cert("localhost", not_before=begins, not_after=ends), files[0].parent)


def _with_passphrase(files: Files) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files[1].read_bytes(), password=None)
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )


@pytest.mark.parametrize(
    ("spoil", "field", "words"),
    [
        (_missing, "http.tls_cert", "cannot be read (No such file or directory)"),
        (_directory, "http.tls_key", "cannot be read (Is a directory)"),
        (_no_pem, "http.tls_cert", "give it as PEM"),
        (_only_key, "http.tls_cert", "give it as PEM"),
        (_no_key, "http.tls_key", "give it as PEM"),
        (_empty_key, "http.tls_key", "give it as PEM"),
        (_of_another, "http.tls_key", "is not the key of the certificate"),
        (_expired, "http.tls_cert", "has expired"),
        (_in_the_future, "http.tls_cert", "is not valid yet"),
        (_with_passphrase, "http.tls_key", "asks for a passphrase"),
    ],
)
def test_files_that_cannot_be_served_with_stop_the_start(
    files: Files, spoil: Callable[[Files], None], field: str, words: str
) -> None:
    spoil(files)
    with pytest.raises(ConfigError) as caught:
        context(files)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
