"""The HTTP server around a listening socket.

Owns how the server learns to stop. It knows no route: it is handed an application.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

_GRACE_S = 3
"""For requests under way at the stop; dashboards hold theirs open for ever and are cut off then."""


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
