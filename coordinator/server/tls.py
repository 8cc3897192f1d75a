"""The certificate we serve with: read and tried out before anything is started.

Owns the checks and the sentence for each failure. It opens no socket: the trial is a handshake with ourselves, in
memory, which finds what the files alone do not show.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from coordinator.settings import HttpSettings
from tiered.errors import ConfigError

_PASSES_MAX: Final = 10  # a handshake takes four
_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED
_NOT_YET: Final = 9  # X509_V_ERR_CERT_NOT_YET_VALID


def tls_context(http: HttpSettings) -> ssl.SSLContext | None:
    """What to serve with; None for plain HTTP.

    Errors: ConfigError naming http.tls_cert or http.tls_key, and the fix.
    """
    if http.tls_cert is None or http.tls_key is None:
        return None
    _require_readable("http.tls_cert", http.tls_cert)
    _require_readable("http.tls_key", http.tls_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(http.tls_cert, http.tls_key, password=_no_passphrase(http.tls_key))
    except ssl.SSLError as error:
        raise _load_error(error, http.tls_cert, http.tls_key) from None
    _try(context, http.tls_cert)
    return context


def _require_readable(field: str, file: Path) -> None:
    try:
        file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{field}: {file} cannot be read ({error.strerror}); name a PEM file that this user may read", field=field
        ) from None


def _no_passphrase(key: Path) -> Callable[[], str]:
    """Instead of a prompt on a terminal that nobody watches."""

    def refuse() -> str:
        raise ConfigError(
            f"http.tls_key: {key} asks for a passphrase; give a key without one (openssl pkey -in ... -out ...)",
            field="http.tls_key",
        )

    return refuse


def _load_error(error: ssl.SSLError, cert: Path, key: Path) -> ConfigError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return ConfigError(
            f"http.tls_key: {key} is not the key of the certificate in {cert}; name the two that belong together",
            field="http.tls_key",
        )
    field, file = ("http.tls_cert", cert) if not _holds_certificate(cert) else ("http.tls_key", key)
    return ConfigError(f"{field}: {file} is not usable ({_words(error)}); give it as PEM", field=field)


def _holds_certificate(cert: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cert)
    except ssl.SSLError:
        return False
    return True


def _try(server_context: ssl.SSLContext, cert: Path) -> None:
    """Shake hands with a client that trusts exactly this certificate: what it complains of, every client will."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client_context.load_verify_locations(cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_side=False)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    try:
        for _ in range(_PASSES_MAX):
            for side in (client, server):
                try:
                    side.do_handshake()
                    done.add(side)
                except ssl.SSLWantReadError:
                    continue
            if len(done) == 2:
                return
    except ssl.SSLCertVerificationError as error:
        why = {_EXPIRED: "has expired", _NOT_YET: "is not valid yet"}.get(
            error.verify_code, f"will not be accepted by clients ({error.verify_message})"
        )
        raise ConfigError(
            f"http.tls_cert: the certificate in {cert} {why}; put a valid one there", field="http.tls_cert"
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(
            f"http.tls_cert: the certificate in {cert} cannot be served ({_words(error)}); put a valid one there",
            field="http.tls_cert",
        ) from None
    raise AssertionError("a handshake in memory did not end")


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
