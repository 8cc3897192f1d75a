"""The worker's HTTP: ``/healthz`` and ``/readyz``, in the coordinator's form, and ``/metrics`` on any other path.

Owns the threads that answer, and the answers' form; what is true is asked on the event loop, so that an answer of any
path means that the loop turns.
"""

from __future__ import annotations

import errno
import io
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from tiered.errors import TierError
from tiered.log import get_logger
from worker.listening import cannot_listen, family_of
from worker.readiness import Readiness

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

STEP_S: Final = 10.0
"""A client that says or takes nothing for this long is left: each holds a thread and a descriptor."""

_log = get_logger("worker.http")


class HttpServer:
    """Listens from the start. Errors: ConfigError when it cannot."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, look: Callable[[], Readiness]) -> None:
        try:
            kind = _Server6 if family_of(host, port) == socket.AF_INET6 else _Server
            self._server: WSGIServer = make_server(host, port, _app(registry, look), kind, _Silent)
        except OSError as error:
            raise cannot_listen(error, host, port, names="node.metrics") from None
        self.port = int(self._server.server_port)
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away or says nothing is none; of another, one line."""
        error = sys.exception()
        if not isinstance(error, OSError):
            _log.error("a request was not answered", client=str(client_address), error=repr(error))


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    timeout = STEP_S

    def setup(self) -> None:
        super().setup()
        self.wfile = _Answer(self.connection)

    def log_message(self, *args: Any) -> None:
        """A request is no event."""


class _Answer(io.BufferedIOBase):
    """On its way to a client: one that does not take it has gone, which wsgiref says nothing of."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            self._sock.sendall(data)
        except TimeoutError as error:
            raise ConnectionAbortedError(errno.ECONNABORTED, "it does not read") from error
        return len(data)


def _app(registry: CollectorRegistry, look: Callable[[], Readiness]) -> WSGIApplication:
    metrics: WSGIApplication = make_wsgi_app(registry)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"] if environ["REQUEST_METHOD"] == "GET" else ""
        if path not in ("/healthz", "/readyz"):
            return metrics(environ, start_response)
        status, said = _answer(path, look)
        body = json.dumps(said).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    return app


def _answer(path: str, look: Callable[[], Readiness]) -> tuple[HTTPStatus, dict[str, object]]:
    try:
        found = look()
    except TierError as error:  # the loop stands still, or has ended
        return _refused("", str(error))
    if path == "/healthz":
        return HTTPStatus.OK, {"status": "ok"}
    refusal = found.refusal()
    if refusal is not None:
        return _refused(*refusal)
    return HTTPStatus.OK, {"status": "ok", "epoch": found.epoch, "redis_connected": found.redis_connected}


def _refused(field: str, message: str) -> tuple[HTTPStatus, dict[str, object]]:
    return HTTPStatus.SERVICE_UNAVAILABLE, {"error": {"field": field, "message": message}}
