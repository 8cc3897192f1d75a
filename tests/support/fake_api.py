"""A coordinator's API that says what a test puts there, over real HTTP; for tests of those who read it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import msgspec

from tiered.cli.bodies import Alert, Node, Stats, Tenant, UsageRow
from tiered.cli.explained import Event


@dataclass
class FakeApi:
    """token: where given, nobody is let in without it. alerts: None of a coordinator that knows no such path; an
    exception is what fails there. asked: paths, in order."""

    stats: Stats
    tenants: Sequence[Tenant] = ()
    nodes: Sequence[Node] = ()
    usage: Sequence[UsageRow] = ()
    events: Sequence[Event] = ()
    alerts: Sequence[Alert] | RuntimeError | None = ()
    token: str = ""
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, target: str, token: str) -> tuple[int, object]:
        parts = urlsplit(target)
        query = parse_qs(parts.query)
        self.asked.append(parts.path)
        if self.token and token != f"Bearer {self.token}":
            return 401, {"error": {"field": "authorization", "message": "no token was shown"}}
        wanted = {name: query[name][0] for name in ("tenant", "node") if name in query}
        bodies: dict[str, object] = {
            "/v1/stats": self.stats,
            "/v1/tenants": {"tenants": self.tenants},
            "/v1/nodes": {"nodes": self.nodes},
            "/v1/usage": {"usage": [row for row in self.usage if _matches(row, wanted)]},
            "/v1/evictions": {
                "events": [e for e in self.events if wanted.get("tenant") in (None, e.tenant)],
                "after": "",
                "silent": [],
            },
        }
        if parts.path == "/v1/alerts" and isinstance(self.alerts, RuntimeError):
            return 500, {"error": {"field": "internal", "message": str(self.alerts)}}
        if self.alerts is not None:
            bodies["/v1/alerts"] = {"alerts": self.alerts}
        if parts.path not in bodies:
            return 404, {"error": {"field": "path", "message": "no such path"}}
        return 200, bodies[parts.path]


def _matches(row: UsageRow, wanted: dict[str, str]) -> bool:
    return wanted.get("tenant") in (None, row.tenant) and wanted.get("node") in (None, row.node)


@contextmanager
def fake_api(api: FakeApi, *, port: int = 0) -> Iterator[FakeApi]:
    """On this port, or any free one; gone at the end, as a killed coordinator is."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = api.answer(self.path, self.headers.get("Authorization", ""))
            content = msgspec.json.encode(body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def __init__(self) -> None:
            super().__init__(("127.0.0.1", port), Handler)
            self.open: list[object] = []

        def process_request(self, request: object, client_address: object) -> None:
            self.open.append(request)
            super().process_request(request, client_address)  # type: ignore[arg-type]

        def hang_up(self) -> None:
            """On callers that keep their connections too: a killed process keeps nothing."""
            for request in self.open:
                self.shutdown_request(request)  # type: ignore[arg-type]

        def handle_error(self, request: object, client_address: object) -> None:
            return  # a caller that has hung up, or on which we have

    server = Server()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        server.hang_up()
        thread.join()
