"""The listening socket and the HTTP server around it.

Owns how we listen and how the server learns to stop. It knows no route: it is handed an application.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from coordinator.settings import HttpSettings
from tiered.errors import ConfigError

_GRACE_S = 3
"""For requests under way at the stop; dashboards hold theirs open for ever and are cut off then."""


def listen(http: HttpSettings) -> socket.socket:
    """Take the port before anything else is started, so that a conflict stops the start and nothing more.

    Errors: ConfigError naming http.port or http.host and the fix.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            http.host, http.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"http.host: {http.host!r} is not a name or address of this machine ({error.strerror}); "
            "use 127.0.0.1, or 0.0.0.0 for every interface",
            field="http.host",
        ) from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise _bind_error(error, http) from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, *, tls: ssl.SSLContext | None = None) -> str:
    """Where a browser on this machine finds us."""
    scheme = "http" if tls is None else "https"
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class HttpServer(uvicorn.Server):
    """uvicorn without hands on the process: signals are the application's, and it says when it accepts
    requests.
    """

    def __init__(self, app: FastAPI, *, on_ready: Callable[[], None], tls: ssl.SSLContext | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",  # unlike httptools it bounds what a client may send as headers: 64 KiB
                ssl_context_factory=None if tls is None else (lambda config, default: tls),
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )
        self._on_ready = on_ready

    def stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


def _bind_error(error: OSError, http: HttpSettings) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"http.port: {http.port} on {http.host} is in use; stop what listens there, "
            "or choose another with --port",
            field="http.port",
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            f"http.port: {http.port} may not be opened by this user; choose one of 1024 or above with --port",
            field="http.port",
        )
    return ConfigError(
        f"http.host: cannot listen on {http.host}:{http.port} ({error.strerror}); use an address of this machine",
        field="http.host",
    )
