"""``tiered up`` with real workers: it serves, it mends what dies, and it leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.processes import Place, temporary_place, until
from tests.support.redis_server import settings_for
from tiered.cluster.connection import command, connect
from tiered.cluster.embedded import EmbeddedServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes through /proc")

N_WORKERS = 2
STOP_S = 10.0


class Up:
    """A running `tiered up` whose words are collected in files."""

    def __init__(self, place: Place, *more: str, n_workers: int = N_WORKERS, **environ: str) -> None:
        self.place = place
        self._out, self._err = place.directory / "up.out", place.directory / "up.err"
        argv = place.argv("up", "--port", "0", "--workers", str(n_workers), "--hot-bytes", "16MiB")
        argv += ["--redis-bytes", "64MiB", *more]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(argv, env={**place.env, **environ}, stdout=out, stderr=err)
        until(lambda: "Ctrl-C" in self.out or self.process.poll() is not None, "the cluster is up", deadline_s=100)
        assert self.process.poll() is None, self.err

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def end(self, number: signal.Signals) -> int:
        """Send the signal; the exit code, which has to come in time."""
        self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.place.directory / "cluster.json").read_text())
        return state


@pytest.fixture
def up() -> Iterator[Up]:
    with temporary_place() as place:
        started = Up(place)
        try:
            yield started
        finally:
            started.process.kill()
            started.process.wait(STOP_S)


def ask(up: Up, *argv: str) -> dict[str, Any]:
    outcome = up.place.run(*argv, "--json")
    assert outcome.returncode == 0, outcome.stderr
    answer: dict[str, Any] = json.loads(outcome.stdout)
    return answer


def limits_of_named(up: Up) -> dict[str, int | None]:
    policies = [one["policy"] for one in ask(up, "tenants", "list")["tenants"] if one["named"]]
    return {policy["tenant"]: policy["redis_limit_bytes"] for policy in policies}


def test_other_commands_find_the_cluster_and_ctrl_c_stops_all_of_it(up: Up) -> None:
    until(lambda: ask(up, "status")["stats"]["nodes"]["alive"] == N_WORKERS, "all workers are seen")
    names = [node["node"] for node in ask(up, "nodes")["nodes"]]
    assert names == ["worker-1", "worker-2"]
    for worker in up.state()["workers"]:
        assert Path(worker["socket_path"]).is_socket()
        assert worker["socket_path"] in up.out
    assert len(up.place.running()) == 3 + N_WORKERS  # launcher, server, coordinator
    secrets = [command for command in up.place.running().values() if "secret" in command.lower()]
    assert secrets == []

    began = time.monotonic()
    assert up.end(signal.SIGINT) == 0
    assert time.monotonic() - began < STOP_S
    assert up.place.running() == {}
    assert not (up.place.directory / "cluster.json").exists()
    assert list((up.place.directory / "run").iterdir()) == []
    assert "Traceback" not in up.err


def test_no_secret_of_a_config_file_is_on_a_command_line_and_each_is_in_force(
    private_redis_server: EmbeddedServer,
) -> None:
    with closing(connect(settings_for(private_redis_server), timeout_s=5.0)) as root:
        command(root, "CONFIG", "SET", "requirepass", "geheim-redis")
    url = private_redis_server.url.replace("unix://", "unix://:geheim-redis@")
    redis = f'redis = {{url = "{private_redis_server.url}", password = "geheim-redis"}}\n'
    with temporary_place() as place:
        config = place.directory / "tiered.toml"
        config.write_text(
            f'[coordinator]\nhttp.admin_token = "geheim-token"\n{redis}'
            f'[worker]\ncluster.secret = "geheim-secret"\n{redis}'
        )
        config.chmod(0o600)
        started = Up(place, "--config", str(config), n_workers=1, TIERED_REDIS_URL=url)
        try:
            running = place.running()
            assert any("-m coordinator" in argv for argv in running.values())
            [worker] = [pid for pid, argv in running.items() if "--node worker-1" in argv]
            assert [argv for argv in running.values() if "geheim" in argv] == []
            environ = Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
            assert b"TIERED_WORKER_CLUSTER__SECRET=geheim-secret" in environ
            api = started.state()["coordinator_url"]
            asked = [
                httpx.get(f"{api}/v1/nodes", headers=headers, trust_env=False).status_code
                for headers in ({}, {"Authorization": "Bearer geheim-token"})
            ]
            assert asked == [401, 200]
        finally:
            started.process.kill()
            started.process.wait(STOP_S)


def test_ctrl_c_while_it_starts_stops_what_was_started() -> None:
    with temporary_place() as place:
        argv = place.argv("up", "--port", "0", "--workers", str(N_WORKERS))
        with subprocess.Popen(argv, env=place.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            until(lambda: any("--node" in command for command in place.running().values()), "a worker is started")
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=STOP_S)
        assert process.returncode == 0
        assert b"Traceback" not in stderr
        assert place.running() == {}
        assert list((place.directory / "run").iterdir()) == []


def test_the_embedded_server_has_the_partitions_that_the_services_are_told() -> None:
    with temporary_place() as place:
        up = Up(place, "--set", "worker.redis.partitions=4", "--set", "coordinator.redis.partitions=4", n_workers=1)
        try:
            until(lambda: ask(up, "status")["stats"]["nodes"]["alive"] == 1, "the worker is seen")
            assert up.end(signal.SIGINT) == 0
        finally:
            up.process.kill()
            up.process.wait(STOP_S)


def test_a_worker_that_refuses_to_start_is_quoted_and_stops_the_rest() -> None:
    with temporary_place() as place:
        outcome = place.run("up", "--port", "0", "--workers", "1", "--set", "worker.pool.colour=blue")
        assert outcome.returncode == 2
        last = outcome.stderr.splitlines()[-1]
        assert last.startswith("tiered: worker-1 did not start: pool.colour: unknown setting")
        assert place.running() == {}


def test_sigterm_stops_it_like_ctrl_c(up: Up) -> None:
    assert up.end(signal.SIGTERM) == 0
    assert up.place.running() == {}
    assert "Traceback" not in up.err


def test_what_dies_is_started_again_and_nothing_outlives_a_killed_launcher(up: Up) -> None:
    ask(up, "tenants", "create", "red", "--redis-limit", "1MiB")
    [victim] = [pid for pid, command in up.place.running().items() if "--node worker-2" in command]
    os.kill(victim, signal.SIGKILL)
    until(lambda: "worker-2 is back" in up.err, "the worker is back")
    assert "worker-2 died (killed by SIGKILL); starting it again in 0.5 s" in up.err
    [log] = up.place.directory.glob("run/**/coordinator.log")
    until(lambda: '"tenants": 2' in log.read_text(), "the coordinator knows the tenant")
    [server] = [pid for pid, command in up.place.running().items() if "redis.sock" in command]
    os.kill(server, signal.SIGKILL)
    until(lambda: "server is back" in up.err, "the server is back")
    until(lambda: limits_of_named(up) == {"default": None, "red": 1 << 20}, "the tenant is back, and its limit")
    [coordinator] = [pid for pid, command in up.place.running().items() if "-m coordinator" in command]
    os.kill(coordinator, signal.SIGKILL)
    until(lambda: "coordinator is back" in up.err, "the coordinator is back")
    until(lambda: ask(up, "status")["stats"]["nodes"]["alive"] == N_WORKERS, "all workers are seen")

    up.process.kill()
    up.process.wait(STOP_S)
    until(lambda: not up.place.running(), "every child is gone", deadline_s=STOP_S)
    outcome = up.place.run("status")
    assert outcome.returncode == 2  # the file is still there, its launcher is not
    assert "tiered up" in outcome.stderr
