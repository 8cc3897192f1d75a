"""The worker's HTTP: ``/healthz`` and ``/readyz``, in the coordinator's form, and ``/metrics`` on any other path.

Owns the threads that answer, and the answers' form; what is true is asked on the event loop, so that an answer of any
path means that the loop turns.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from tiered.errors import ConfigError, TierError
from worker.readiness import Readiness

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


class HttpServer:
    """Listens from the start. Errors: ConfigError when it cannot."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, look: Callable[[], Readiness]) -> None:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            kind = _Server6 if family == socket.AF_INET6 else _Server
            self._server: WSGIServer = make_server(host, port, _app(registry, look), kind, _Silent)
        except OSError as error:
            raise ConfigError(
                f"node.metrics_port: cannot listen on {host}:{port}: {error.strerror}; "
                "choose a free port, or 0 for any",
                field="node.metrics_port",
            ) from None
        self.port = int(self._server.server_port)
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        """A request is no event."""


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
