"""The coordinator as a real process: how it starts, refuses to start, outlives Redis, and stops."""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.redis_server import eventually
from tiered.cluster.embedded import EmbeddedServer

DEADLINE_S = 30.0
"""For anything a loaded machine may take its time over; usually a second."""


class CoordinatorProcess:
    """``python -m coordinator`` on a free port."""

    def __init__(self, *flags: str) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coordinator", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._log: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._follow, args=(self.process.stdout, self._lines.put), daemon=True),
            threading.Thread(target=self._follow, args=(self.process.stderr, self._log.append), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _follow(stream: Iterator[str], take: Callable[[str], None]) -> None:
        for line in stream:
            take(line.rstrip("\n"))

    def line(self) -> str:
        return self._lines.get(timeout=DEADLINE_S)

    def printed(self) -> list[str]:
        """All lines not taken yet, of a process that has ended."""
        return [self._lines.get_nowait() for _ in range(self._lines.qsize())]

    def wait(self) -> int:
        code = self.process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        return code

    @property
    def log(self) -> str:
        return "\n".join(self._log)

    def close(self) -> None:
        self.process.kill()
        self.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


Start = Callable[..., CoordinatorProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[CoordinatorProcess] = []

    def start_one(*flags: str) -> CoordinatorProcess:
        started.append(CoordinatorProcess(*flags))
        return started[-1]

    yield start_one
    for process in started:
        process.close()


def ready(process: CoordinatorProcess) -> httpx.Client:
    said = re.fullmatch(r"coordinator ready on (http://127\.0\.0\.1:\d+)", process.line())
    assert said is not None
    return httpx.Client(base_url=said[1], timeout=DEADLINE_S)


def refusal(process: CoordinatorProcess) -> str:
    """What a process that must not start says: one line on stderr, nothing on stdout, exit code 2."""
    assert process.wait() == 2
    assert "Traceback" not in process.log
    assert len(process.log.splitlines()) == 1
    return process.log


def test_a_coordinator_serves_until_it_is_told_to_stop(start: Start, private_redis_server: EmbeddedServer) -> None:
    process = start("--port", "0", "--redis-url", private_redis_server.url)
    with ready(process) as http:
        assert http.get("/readyz").status_code == 200
        assert http.post("/v1/tenants", json={"tenant": "acme", "weight": 2}).status_code == 201
        assert http.patch("/v1/tenants/acme", json={"weight": 3}).json()["policy"]["weight"] == 3
        assert http.put("/v1/tenants/acme", json={}).json()["policy"]["weight"] == 1
        assert http.delete("/v1/tenants/acme").status_code == 204
        assert http.get("/v1/tenants/acme").status_code == 404
        assert "tiered_view_stale 0.0" in http.get("/metrics").text
        assert "<title>Tiered</title>" in http.get("/").text
        assert http.get("/docs").status_code == 200
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "Traceback" not in process.log


def test_an_interrupt_stops_it_as_cleanly(start: Start, private_redis_server: EmbeddedServer) -> None:
    process = start("--port", "0", "--redis-url", private_redis_server.url)
    ready(process).close()
    process.process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    assert "Traceback" not in process.log


def test_it_outlives_redis_and_says_when_its_numbers_are_old(
    start: Start, private_redis_server: EmbeddedServer, tmp_path: Path
) -> None:
    process = start(
        *("--port", "0", "--redis-url", private_redis_server.url),
        *("--set", "cluster.snapshot_interval_s=0.05", "--set", "cluster.sweep_interval_s=0.05"),
    )
    with ready(process) as http:
        http.post("/v1/tenants", json={"tenant": "acme"})
        private_redis_server.kill()
        eventually(lambda: http.get("/readyz").status_code == 503, within_s=DEADLINE_S)
        assert http.get("/healthz").status_code == 200
        assert http.get("/v1/stats").json()["stale"]
        assert http.get("/v1/tenants/acme").json()["named"]
        refused = http.post("/v1/tenants", json={"tenant": "globex"})
        assert refused.status_code == 503
        assert refused.json()["error"]["message"].startswith("Redis")
        with EmbeddedServer.start(tmp_path / "redis", maxmemory_bytes=None):
            eventually(lambda: http.get("/readyz").status_code == 200, within_s=DEADLINE_S)
            assert not http.get("/v1/stats").json()["stale"]
            assert http.post("/v1/tenants", json={"tenant": "globex"}).status_code == 201
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def test_a_taken_port_stops_the_start(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(start("--port", str(port), "--redis-url", "redis://127.0.0.1:1"))
    assert f"http.port: {port} on 127.0.0.1 is in use" in said
    assert "--port" in said


def test_an_unreachable_redis_stops_the_start(start: Start, tmp_path: Path) -> None:
    assert "redis.url" in refusal(start("--port", "0", "--redis-url", f"unix://{tmp_path}/nothing.sock"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--set", "cluster.sweep=1"), "cluster.sweep: unknown setting"),
        (("--set", "http.port=seventy"), "http.port: 'seventy' is not valid"),
        (("--set", "http.port"), "is not KEY=VALUE"),
        (("--host", "0.0.0.0"), "http.admin_token"),
        (("--config", "/nowhere.toml"), "config: cannot read /nowhere.toml"),
        (("--host", "no such host", "--set", "http.admin_token=s3cret"), "http.host"),
    ],
)
def test_a_bad_setting_stops_the_start(start: Start, flags: tuple[str, ...], words: str) -> None:
    assert words in refusal(start(*flags))


def test_check_config_prints_each_value_with_its_origin_and_starts_nothing(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "coordinator.toml"
    config.write_text('[http]\nport = 9999\nadmin_token = "s3cret"\n', encoding="utf-8")
    process = start("--config", str(config), "--namespace", "blue", "--check-config")
    assert process.wait() == 0
    lines = process.printed()
    assert f"http.port = 9999  (file {config})" in lines
    assert f"http.admin_token = ***  (file {config})" in lines
    assert any(line.startswith("redis.namespace = blue  (the command line") for line in lines)
    assert "cluster.sweep_interval_s = 2.0  (default)" in lines


def test_nothing_in_the_coordinator_imports_torch() -> None:
    code = "import sys, coordinator.app, coordinator.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=DEADLINE_S, check=False).returncode == 0
