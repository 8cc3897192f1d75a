"""What /healthz and /readyz of a worker say, and in which form; when it counts as ready."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

import worker.http_server
from tests.support.worker_process import until
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


def test_a_client_that_says_nothing_or_reads_nothing_is_left_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker.http_server._Silent, "timeout", 0.3)
    begun, answered = threading.Semaphore(0), threading.Semaphore(0)

    class Noted(worker.http_server._Silent):
        def setup(self) -> None:
            super().setup()
            begun.release()

    monkeypatch.setattr(worker.http_server, "_Silent", Noted)

    def answer_large(*_: object) -> object:
        def app(environ: object, start_response: Callable[..., object]) -> list[bytes]:
            start_response("200 OK", [])
            answered.release()
            return [bytes(64 << 20)]

        return app

    monkeypatch.setattr(worker.http_server, "_app", answer_large)
    with serving(lambda: READY) as http:
        there = (http.base_url.host, http.base_url.port)
        for said in (b"", b"GET /met", b"GET / HTTP/1.1\r\nHost: w"):
            with socket.create_connection(there, timeout=10.0) as silent:
                silent.sendall(said)
                assert silent.recv(1) == b""
            assert begun.acquire(timeout=10.0)
        with socket.create_connection(there, timeout=10.0) as deaf:
            deaf.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert begun.acquire(timeout=10.0)
            assert answered.acquire(timeout=10.0)
            until(lambda: not answering(), "it was left")
        with socket.create_connection(there, timeout=10.0) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends by a reset
            gone.sendall(b"GET /")
            assert begun.acquire(timeout=10.0), "it is read from"
        until(lambda: not answering(), "it was left")
    assert capfd.readouterr().err == ""
    assert caplog.records == []


def answering() -> bool:
    return any("process_request_thread" in thread.name for thread in threading.enumerate())


def test_what_goes_wrong_with_a_request_is_one_line(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def start_late(thread: threading.Thread) -> None:
        if "process_request_thread" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with serving(lambda: READY) as http:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start_late)
            with pytest.raises(httpx.TransportError):
                http.get("/healthz")
        assert http.get("/healthz").status_code == 200
    assert "can't start new thread" in caplog.text
    assert "Traceback" not in capfd.readouterr().err + caplog.text


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"^node\.metrics_port: cannot listen on 127\.0\.0\.1:{port}: .*free port"
        ):
            HttpServer("127.0.0.1", port, CollectorRegistry(), lambda: READY)
