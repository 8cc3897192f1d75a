"""Takes the port of an HTTP service, and says where it is found."""

from __future__ import annotations

import errno
import socket
import ssl

from tiered.addresses import WILDCARDS
from tiered.errors import ConfigError


def listen(host: str, port: int, *, group: str) -> socket.socket:
    """Take the port before anything else is started, so that a conflict stops the start and nothing more.

    group: of the settings ``host`` and ``port``. Errors: ConfigError naming one of them and the fix.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, socket.gaierror) else "no name at all"
        raise ConfigError(
            f"{group}.host: {host!r} is not a name or address of this machine ({why}); "
            "use 127.0.0.1, or 0.0.0.0 for every interface",
            field=f"{group}.host",
        ) from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise _bind_error(error, host, port, group) from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, *, tls: ssl.SSLContext | None = None) -> str:
    """Where a browser on this machine finds us."""
    host = listener.getsockname()[0]
    return _url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), listener, tls)


def advertised_url_of(listener: socket.socket, host: str, *, tls: ssl.SSLContext | None = None) -> str:
    """Where others find us. host: what they are to call us; empty: where we listen, or this machine's name where that
    is every address."""
    bound = listener.getsockname()[0]
    return _url(host or (socket.gethostname() if bound in WILDCARDS else bound), listener, tls)


def _url(host: str, listener: socket.socket, tls: ssl.SSLContext | None) -> str:
    scheme, port, host = "http" if tls is None else "https", listener.getsockname()[1], host.strip("[]")
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _bind_error(error: OSError, host: str, port: int, group: str) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"{group}.port: {port} on {host} is in use; stop what listens there, or choose another with --port",
            field=f"{group}.port",
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            f"{group}.port: {port} may not be opened by this user; choose one of 1024 or above with --port",
            field=f"{group}.port",
        )
    return ConfigError(
        f"{group}.host: cannot listen on {host}:{port} ({error.strerror}); use an address of this machine",
        field=f"{group}.host",
    )
