"""The command against real processes: a user's mistake is one line, exit code 2, and leaves nothing running."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.processes import Place, temporary_place, until
from tiered.cli.ports import free_ports
from tiered.cli.process import Child
from tiered.cluster.embedded import EmbeddedServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes through /proc")


@pytest.fixture
def place() -> Iterator[Place]:
    with temporary_place() as made:
        yield made


@pytest.fixture(scope="module")
def coordinator() -> Iterator[str]:
    """A coordinator over a server of its own; no workers."""
    [port] = free_ports(1)
    with temporary_place() as made, EmbeddedServer.start(made.directory, maxmemory_bytes=64 << 20) as server:
        argv = [sys.executable, "-m", "coordinator", "--port", str(port), "--redis-url", server.url]
        child = Child("coordinator", argv, env=made.env, log_dir=made.directory, ready_text="coordinator ready on ")
        child.spawn()
        try:
            until(lambda: child.ready or not child.alive, "the coordinator starts")
            assert child.ready, child.last_words
            yield f"http://127.0.0.1:{port}"
        finally:
            child.stop(grace_s=5.0)


def refused(place: Place, *argv: str) -> str:
    """Run a command that must be refused; its one line, besides a sign of life that a busy machine may add."""
    outcome = place.run(*argv)
    lines = [line for line in outcome.stderr.splitlines() if not line.startswith("starting ")]
    assert outcome.returncode == 2, outcome.stderr
    assert outcome.stdout == ""
    assert len(lines) == 1, outcome.stderr
    assert lines[0].startswith("tiered: ")
    assert place.running() == {}
    return lines[0]


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["up", "--set", "pool.policy=lru"], ["pool.policy: unknown setting", "worker."]),
        (["up", "--config", "/nowhere/tiered.toml"], ["cannot read /nowhere/tiered.toml"]),
        (["up", "--workers", "0"], ["--workers"]),
        (["up", "--hot-bytes", "lots"], ["--hot-bytes", "512MiB"]),
        (["up", "--redis-bytes", "0"], ["--redis-bytes"]),
        (["up", "--namespace", "a b"], ["--namespace: 'a b' is not valid"]),
        (["up", "--port", "0", "--redis-url", "redis://h:port"], ["--redis-url"]),
        (["up", "--redis-url", "http://h"], ["--redis-url", "redis://host:port"]),
        (["up", "--port", "0", "--redis-url", "redis://127.0.0.1:1"], ["--redis-url", "redis://127.0.0.1:1"]),
        (["status", "--coordinator", "http://127.0.0.1:1"], ["nothing answers", "tiered up", "TIERED_COORDINATOR"]),
        (["stats", "--coordinator", "here"], ["--coordinator http://host:port"]),
        (["up", "--wrokers", "3"], ["--wrokers"]),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_running(place: Place, argv: list[str], parts: list[str]) -> None:
    sentence = refused(place, *argv)
    for part in parts:
        assert part in sentence


def test_a_password_in_a_url_is_not_repeated(place: Place) -> None:
    assert "hunter2" not in refused(place, "up", "--port", "0", "--redis-url", "redis://u:hunter2@127.0.0.1:1")


def test_a_taken_port_is_named_before_anything_is_started(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port: port {port} cannot be used" in refused(place, "up", "--port", port)
        assert "--peer-port-base" in refused(place, "up", "--port", "0", "--peer-port-base", port)
    assert not (place.directory / "run").exists()


def test_an_unknown_setting_of_a_service_is_told_in_its_own_words(place: Place) -> None:
    sentence = refused(place, "up", "--port", "0", "--workers", "1", "--set", "coordinator.http.colour=blue")
    assert "coordinator did not start: http.colour: unknown setting" in sentence


def test_a_run_directory_too_long_for_a_socket_is_named(place: Place) -> None:
    env = {**place.env, "TIERED_RUN_DIR": str(place.directory / ("x" * 100))}
    outcome = subprocess.run(
        place.argv("up", "--port", "0"), env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert outcome.returncode == 2
    assert "TIERED_RUN_DIR" in outcome.stderr
    assert place.running() == {}


def test_an_unknown_tenant_is_one_line(place: Place, coordinator: str) -> None:
    for verb in ("show", "delete"):
        assert "nobody" in refused(place, "tenants", verb, "nobody", "--coordinator", coordinator)
    refused(place, "tenants", "set", "nobody", "--weight", "2", "--coordinator", coordinator)


def test_a_tenant_lives_through_create_set_show_and_delete(place: Place, coordinator: str) -> None:
    def tenants(*argv: str) -> dict[str, object]:
        outcome = place.run("tenants", *argv, "--coordinator", coordinator, "--json")
        assert outcome.returncode == 0, outcome.stderr
        policy: dict[str, object] = json.loads(outcome.stdout)["policy"]
        return policy

    created = tenants("create", "acme", "--redis-reserved", "1MiB", "--redis-limit", "2MiB", "--over-quota", "refuse")
    assert (created["redis_reserved_bytes"], created["redis_limit_bytes"]) == (1 << 20, 2 << 20)
    assert created["over_quota"] == "refuse"
    changed = tenants("set", "acme", "--redis-limit", "none", "--weight", "2")
    assert (changed["redis_reserved_bytes"], changed["redis_limit_bytes"]) == (1 << 20, None)
    assert tenants("show", "acme") == changed
    refused(place, "tenants", "create", "acme", "--coordinator", coordinator)
    assert place.run("tenants", "delete", "acme", "--coordinator", coordinator).returncode == 0
    refused(place, "tenants", "show", "acme", "--coordinator", coordinator)


def test_a_reservation_above_the_limit_is_refused_by_field(place: Place, coordinator: str) -> None:
    argv = ("tenants", "create", "big", "--hot-reserved", "2GiB", "--hot-limit", "1GiB", "--coordinator", coordinator)
    assert "hot_reserved_bytes" in refused(place, *argv)


def test_an_empty_cluster_prints_zeros_and_words(place: Place, coordinator: str) -> None:
    env = {**place.env, "TIERED_COORDINATOR": coordinator}

    def lines(*argv: str) -> str:
        return subprocess.run(
            place.argv(*argv), env=env, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    assert "0 of 0 alive" in lines("status")
    assert "no worker has joined" in lines("nodes")
    assert "all" in lines("stats")
    assert "default" in lines("tenants", "list")
    assert json.loads(lines("nodes", "--json")) == {"nodes": []}
    assert json.loads(lines("stats", "--json"))["tokens"]["asked"] == 0


def test_a_command_that_only_asks_does_not_import_torch() -> None:
    code = (
        "import sys\n"
        "from tiered.cli.main import main\n"
        "main(['status', '--coordinator', 'http://127.0.0.1:1'])\n"
        "print(sorted({'torch', 'transformers', 'fastapi'} & set(sys.modules)))\n"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert outcome.stdout == "[]\n"


def test_a_reader_that_has_seen_enough_is_no_error(place: Place) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as closed:
        process = subprocess.Popen(place.argv("doctor"), env=place.env, stdout=closed, stderr=subprocess.PIPE)
    _, stderr = process.communicate(timeout=60)
    assert stderr == b""
    assert process.returncode == 1


def test_every_log_of_a_failed_start_is_kept_to_be_read(place: Place) -> None:
    refused(place, "up", "--port", "0", "--workers", "1", "--set", "coordinator.log.level=loud")
    [run] = (place.directory / "run").iterdir()
    assert "loud" in Path(run / "coordinator.log").read_text()
