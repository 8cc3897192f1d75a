"""What is wrong at a worker's start is said in one sentence with exit code 2, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.content import SCOPE
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import WorkerProcess, until
from tiered.client.remote import RemoteClient


def refusal(worker: WorkerProcess) -> str:
    """The one sentence of a worker that would not start; what else it wrote are events of its log."""
    assert worker.wait(within_s=20) == 2, worker.log
    assert worker.stdout_path.read_text() == ""
    sentences = [line for line in worker.log.splitlines() if not _is_event(line)]
    assert len(sentences) == 1, worker.log
    assert sentences[0].startswith("tiered-worker: ")
    return sentences[0].removeprefix("tiered-worker: ")


def _is_event(line: str) -> bool:
    try:
        return "event" in json.loads(line)
    except ValueError:
        return False


def leftovers(cluster: SmallCluster) -> list[str]:
    return [path.name for path in cluster.directory.iterdir() if path.suffix not in (".out", ".err")]


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (["--set", "pool.policy=mru"], "pool.policy: 'mru' is unknown; known policies: "),
        (["--set", "pool.polcy=lru"], "pool.polcy: unknown setting"),
        (["--set", "pool=5"], "pool: "),
        (["--set", "pool.bytes"], "--set: 'pool.bytes' is not KEY=VALUE"),
        (["--hot-bytes", "0"], "pool.bytes: "),
        (["--hot-bytes", "4 bags"], "pool.bytes: '4 bags' is not valid"),
        (["--device", "gpu"], "pool.device: 'gpu' is not valid"),
        (["--device", "cuda:99"], "pool.device: "),
        (["--node", "a b"], "node.name: 'a b' is not valid"),
        (["--socket", "/tmp/" + "x" * 120], "node.socket: "),
        (["--socket", "/nonexistent/w.sock"], "node.socket: cannot listen on /nonexistent/w.sock: No such file"),
        (["--socket", "/tmp"], "node.socket: /tmp exists and is no socket"),
        (["--peer-host", "192.0.2.1"], "node: "),
        (["--peer-host", "0.0.0.0", "--set", "cluster.secret=s"], "node.advertise_host: "),
        (["--set", "cluster.accepted_secret=s"], "cluster.accepted_secret: "),
        (["--peer-host", "no.such.host.invalid", "--set", "cluster.secret=s"], "node.peer_host: cannot listen on "),
        (["--set", "node.metrics_host=no.such.host.invalid"], "node.metrics_host: cannot listen on "),
        (["--redis-url", "redis://127.0.0.1:1"], "redis.url: no usable server at redis://127.0.0.1:1"),
        (["--redis-url", "redis://no.such.host.invalid"], "redis.url: no usable server at "),
        (["--redis-url", "redis://127.0.0.1:x"], "redis.url: "),
        (["--redis-url", "redis://127.0.0.1:99999"], "redis.url: "),
        (["--redis-url", "redis://127.0.0.1?no_such_option=1"], "redis.url: "),
        (["--redis-url", "http://127.0.0.1"], "redis.url: 'http://127.0.0.1' is not valid"),
        (["--redis-url", "unix:///nonexistent/redis.sock"], "redis.url: no usable server at "),
        (["--redis-url", "redis://me:secret@127.0.0.1:1"], "redis.url: no usable server at redis://***@127.0.0.1:1"),
        (["--config", "/nonexistent.toml"], "config: cannot read /nonexistent.toml"),
        (["--set", "cluster.lease_ttl_s=1"], "cluster.heartbeat_s: "),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_wrong_setting_stops_the_start(cluster: SmallCluster, extra: list[str], sentence: str) -> None:
    said = refusal(cluster.spawn("w1", extra=extra))
    assert said.startswith(sentence)
    assert "secret@" not in said
    assert leftovers(cluster) == []
    assert cluster.membership.nodes() == []


def test_a_second_worker_on_one_socket_is_refused_and_the_first_serves_on(cluster: SmallCluster) -> None:
    [first] = cluster.start("w1")
    second = cluster.spawn("w2", extra=["--socket", first.socket_path])
    assert refusal(second).startswith(f"node.socket: {first.socket_path} is in use by another worker")
    with cluster.attach("w1") as client:
        assert client.node == "w1"
    assert [view.info.node for view in cluster.membership.nodes()] == ["w1"]


def test_the_socket_of_a_killed_worker_is_no_obstacle(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    worker.kill()
    assert Path(worker.socket_path).is_socket()
    cluster.restart("w1")
    with cluster.attach("w1") as client:
        assert client.node == "w1"


def test_a_file_that_is_no_socket_is_left_alone(cluster: SmallCluster) -> None:
    precious = cluster.directory / "notes.txt"
    precious.write_text("mine")
    worker = cluster.spawn("w1", extra=["--socket", str(precious)])
    assert refusal(worker).startswith(f"node.socket: {precious} ")
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("field", ["peer_port", "metrics_port"])
def test_a_port_in_use_stops_the_start(cluster: SmallCluster, field: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(cluster.spawn("w1", f"node.{field}={port}"))
    assert said.startswith(f"node.{field}: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert leftovers(cluster) == []


def test_the_socket_is_for_its_user_alone(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    assert os.stat(worker.socket_path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "moment",
    [
        lambda worker: Path(worker.socket_path).exists(),
        lambda worker: worker.ready,
    ],
    ids=["as soon as it listens", "as soon as it is ready"],
)
def test_a_stop_during_the_start_is_as_orderly_as_one_afterwards(
    cluster: SmallCluster, moment: Callable[[WorkerProcess], bool]
) -> None:
    for attempt in range(4):
        worker = cluster.spawn(f"w{attempt}")
        until(lambda worker=worker: moment(worker), "the moment", within_s=20)  # type: ignore[misc]
        assert worker.stop() == 0, worker.log
        assert leftovers(cluster) == []
        assert cluster.membership.nodes() == []


def test_python_m_worker_starts_serves_and_stops(cluster: SmallCluster, tmp_path: Path) -> None:
    """As users start it, without the short cut that these tests take."""
    path = cluster.socket_path("real")
    argv = [sys.executable, "-m", "worker", "--node", "real", "--socket", path]
    argv += ["--redis-url", cluster.server.url, "--namespace", cluster.namespace, "--hot-bytes", "1MiB"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
    with (tmp_path / "out").open("w+") as out, (tmp_path / "err").open("w+") as err:
        process = subprocess.Popen(argv, env=environ, stdout=out, stderr=err)
        try:
            until(lambda: "ready" in (tmp_path / "out").read_text(), "the ready line", within_s=60)
            client = RemoteClient.attach(path, SCOPE)
            assert client.node == "real"
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
            client.close()
        finally:
            process.kill()
            process.wait()
    assert (tmp_path / "out").read_text() == f"worker real ready on unix://{path}\n"
    assert "Traceback" not in (tmp_path / "err").read_text()
    assert leftovers(cluster) == []
