"""What /healthz and /readyz of a worker say, and in which form; when it counts as ready."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from tiered.errors import ConfigError, TierTimeout
from tiered.types import NO_EPOCH, Epoch
from worker.http_server import HttpServer
from worker.readiness import Readiness

READY = Readiness(serves_engines=True, drains=False, epoch=Epoch(7), redis_connected=True)


@contextmanager
def serving(look: Callable[[], Readiness], host: str = "127.0.0.1") -> Iterator[httpx.Client]:
    registry = CollectorRegistry()
    Gauge("tiered_anything", "A series", registry=registry)
    server = HttpServer(host, 0, registry, look)
    at = f"[{host}]" if ":" in host else host
    try:
        with httpx.Client(base_url=f"http://{at}:{server.port}", timeout=10.0, trust_env=False) as http:
            yield http
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("found", "field"),
    [
        (READY, None),
        (replace(READY, epoch=NO_EPOCH, redis_connected=False), None),  # without Redis it serves on
        (replace(READY, redis_connected=False), None),
        (replace(READY, epoch=NO_EPOCH), "lease"),
        (replace(READY, drains=True), "drain"),
        (replace(READY, drains=True, epoch=NO_EPOCH, redis_connected=False), "drain"),
        (replace(READY, serves_engines=False), "socket"),
        (replace(READY, serves_engines=False, epoch=NO_EPOCH, redis_connected=False), "socket"),
    ],
)
def test_a_worker_is_ready_when_engines_should_attach(found: Readiness, field: str | None) -> None:
    with serving(lambda: found) as http:
        healthy, ready = http.get("/healthz"), http.get("/readyz")
        assert (healthy.status_code, healthy.json()) == (200, {"status": "ok"})
        assert ready.headers["content-type"] == "application/json"
        if field is None:
            said = {"status": "ok", "epoch": found.epoch, "redis_connected": found.redis_connected}
            assert (ready.status_code, ready.json()) == (200, said)
        else:
            assert ready.status_code == 503
            assert ready.json()["error"]["field"] == field
            assert ready.json()["error"]["message"]


def test_a_loop_that_stands_still_is_neither_healthy_nor_ready() -> None:
    def look() -> Readiness:
        raise TierTimeout("the event loop did not answer within 2 s")

    with serving(look) as http:
        for path in ("/healthz", "/readyz"):
            answer = http.get(path)
            assert answer.status_code == 503
            assert answer.json() == {"error": {"field": "", "message": "the event loop did not answer within 2 s"}}


def test_any_other_path_is_the_metrics() -> None:
    with serving(lambda: READY) as http:
        for path in ("/metrics", "/", "/readyz/", "/metrics?name[]=tiered_anything"):
            assert "tiered_anything 0.0" in http.get(path).text
        assert http.post("/readyz").status_code == 405


def test_it_listens_on_ipv6_too() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    with serving(lambda: READY, "::1") as http:
        assert http.get("/readyz").status_code == 200


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"^node\.metrics_port: cannot listen on 127\.0\.0\.1:{port}: .*free port"
        ):
            HttpServer("127.0.0.1", port, CollectorRegistry(), lambda: READY)
