"""TLS to Redis: what the URL says of it holds for control calls and for values alike."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest
import redis.connection
import trustme

from tests.support.redis_server import settings_for
from tests.unit.tiers.redis.tls_relay import relaying
from tiered.cluster.connection import connect, ping
from tiered.cluster.embedded import EmbeddedServer
from tiered.codec.frame import HEADER_BYTES
from tiered.errors import TierUnavailable
from tiered.tiers.redis.tls import tls_context
from tiered.tiers.redis.values import Fetched, ValueClient, ValueToRead, ValueToWrite, Written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA in a file and in a hashed directory, and certificates of it for two names."""
    folder = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("localhost", "elsewhere.example"):
        leaf = ca.issue_cert(name)
        leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        leaf.private_key_pem.write_to_path(folder / f"{name}.key")
    return folder


@pytest.fixture
def ports(redis_server: EmbeddedServer, folder: Path) -> Iterator[dict[str, int]]:
    """Where the server is reached over TLS, by the name in the certificate that it shows there."""
    here, elsewhere = (
        (folder / f"{name}.pem", folder / f"{name}.key") for name in ("localhost", "elsewhere.example")
    )
    with relaying(redis_server.socket_path, *here) as one, relaying(redis_server.socket_path, *elsewhere) as other:
        yield {"localhost": one, "elsewhere.example": other}


def reach(redis_server: EmbeddedServer, port: int, query: str) -> None:
    """One control call, one value written and read. Errors: those of the first that fails."""
    settings = settings_for(redis_server, url=f"rediss://localhost:{port}?{query}")
    with closing(connect(settings, timeout_s=5.0)) as client:
        ping(client)
    with closing(ValueClient(settings)) as values:
        key, header = settings.namespace.encode(), bytes(HEADER_BYTES)
        assert list(values.put([ValueToWrite(key, header, memoryview(b"abc"))], ttl_ms=60_000)) == [Written.STORED]
        [received] = values.get([ValueToRead(key, memoryview(bytearray(3)))])
        assert received.fetched is Fetched.HERE


def test_a_certificate_for_another_name_is_taken_where_names_are_not_checked(
    redis_server: EmbeddedServer, ports: dict[str, int], folder: Path
) -> None:
    reach(redis_server, ports["elsewhere.example"], f"ssl_check_hostname=false&ssl_ca_certs={folder}/ca.pem")
    with pytest.raises(TierUnavailable, match="certificate"):
        reach(redis_server, ports["elsewhere.example"], f"ssl_ca_certs={folder}/ca.pem")
    with pytest.raises(TierUnavailable, match="certificate"):  # the name alone is not checked
        reach(redis_server, ports["elsewhere.example"], "ssl_check_hostname=false")


@pytest.mark.parametrize("cert_reqs", ["none", "optional", "required"])
def test_the_ca_may_be_in_the_url(
    redis_server: EmbeddedServer, ports: dict[str, int], folder: Path, cert_reqs: str
) -> None:
    query = {"ssl_ca_data": (folder / "ca.pem").read_text(), "ssl_cert_reqs": cert_reqs, "ssl_min_version": "772"}
    reach(redis_server, ports["localhost"], urlencode(query))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="OpenSSL's own hash of the CA's name is the file's name")
def test_the_ca_may_be_in_a_directory(
    redis_server: EmbeddedServer, ports: dict[str, int], folder: Path, tmp_path: Path
) -> None:
    hashed = ["openssl", "x509", "-noout", "-hash", "-in", str(folder / "ca.pem")]
    name = subprocess.run(hashed, check=True, capture_output=True, text=True).stdout.strip()
    shutil.copy(folder / "ca.pem", tmp_path / f"{name}.0")
    reach(redis_server, ports["localhost"], f"ssl_ca_path={tmp_path}")


def context(query: dict[str, str]) -> ssl.SSLContext:
    return tls_context(redis.connection.parse_url(f"rediss://h?{urlencode(query)}"))  # type: ignore[no-untyped-call]


def test_versions_ciphers_and_flags_are_those_of_the_url() -> None:
    made = context(
        {
            "ssl_min_version": "772",
            "ssl_ciphers": "ECDHE-RSA-AES128-GCM-SHA256",
            "ssl_include_verify_flags": "VERIFY_CRL_CHECK_LEAF",
            "ssl_exclude_verify_flags": "VERIFY_X509_TRUSTED_FIRST",
        }
    )
    assert made.minimum_version is ssl.TLSVersion.TLSv1_3
    assert [each["name"] for each in made.get_ciphers() if each["protocol"] == "TLSv1.2"] == [
        "ECDHE-RSA-AES128-GCM-SHA256"
    ]
    assert made.verify_flags & ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    assert not made.verify_flags & ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST


def test_a_key_of_our_own_may_need_a_password(folder: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((folder / "localhost.key").read_bytes(), password=None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )
    files = {"ssl_certfile": str(folder / "localhost.pem"), "ssl_keyfile": str(locked)}
    context({**files, "ssl_password": "word"})
    with pytest.raises(TierUnavailable, match=r"redis\.url: cannot use what a TLS option"):
        context({**files, "ssl_password": "falsch"})


@pytest.mark.parametrize("query", [{"ssl_ca_certs": "/missing"}, {"ssl_ca_data": "no PEM"}, {"ssl_ciphers": "ROT13"}])
def test_what_cannot_be_used_makes_the_server_unavailable(query: dict[str, str]) -> None:
    with pytest.raises(TierUnavailable, match=r"redis\.url: cannot use what a TLS option"):
        context(query)
