"""The chart's own Redis for real: a server with its configuration and users, and both services on it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import redis

from tests.deploy.rendering import Manifest, helm, nested, pod, the
from tests.deploy.test_settings import Loader
from tests.support.worker_process import until
from tiered.cluster.embedded import find_server_binary

pytestmark = pytest.mark.deploy

START_S = 60.0


@pytest.fixture(params=[False, True], ids=["memory alone", "AOF"])
def manifests(request: pytest.FixtureRequest) -> tuple[Manifest, ...]:
    return helm(nested({"redis.persistence.aof": request.param}))


def test_both_services_run_on_it_with_the_rights_that_it_gives(
    tmp_path: Path, manifests: tuple[Manifest, ...]
) -> None:
    loader = Loader(tmp_path, manifests)
    with running_redis(tmp_path, loader, manifests) as port:
        shared = {"REDIS__URL": f"redis://tiered@127.0.0.1:{port}"}
        here = {"NODE__SOCKET": str(tmp_path / "w.sock"), "JOURNAL__PATH": str(tmp_path / "journal")}
        here |= {"NODE__PEER_HOST": "127.0.0.1", "NODE__METRICS_HOST": "127.0.0.1", "POOL__BYTES": "16MiB"}
        here |= {"NODE__PEER_PORT": "0", "NODE__METRICS_PORT": "0", "NODE__ADVERTISE_HOST": "127.0.0.1"}
        worker = environ(loader, manifests, "worker", "TIERED_WORKER_", shared | here)
        listen = {"HTTP__HOST": "127.0.0.1", "HTTP__PORT": "0"}
        coordinator = environ(loader, manifests, "coordinator", "TIERED_COORDINATOR_", shared | listen)
        with running("worker", worker, tmp_path), running("coordinator", coordinator, tmp_path) as said:
            url = said.rsplit(" ", 1)[1]
            headers = {"Authorization": f"Bearer {loader.secret('tiered-secrets', 'read-token')}"}
            with httpx.Client(base_url=url, trust_env=False, timeout=10) as client:
                until(lambda: client.get("/readyz").status_code == 200, "it reads Redis", within_s=START_S)
                assert client.get("/metrics").status_code == 401
                assert "tiered_node_up" in client.get("/metrics", headers=headers).text
                nodes = client.get("/v1/nodes", headers=headers).json()
        assert worker["TIERED_WORKER_NODE__NAME"] in str(nodes)
    for name in ("worker", "coordinator"):
        assert "NOPERM" not in (tmp_path / f"{name}.err").read_text()


def test_it_lets_in_nobody_without_the_password(tmp_path: Path, manifests: tuple[Manifest, ...]) -> None:
    loader = Loader(tmp_path, manifests)
    with running_redis(tmp_path, loader, manifests) as port:
        with redis.Redis(port=port) as nobody, pytest.raises(redis.AuthenticationError):
            nobody.ping()
        with as_tiered(loader, port) as ours:
            with pytest.raises(redis.ResponseError, match=r"(?i)no permissions|NOPERM"):
                ours.set("another-namespace", "x")
            with pytest.raises(redis.ResponseError, match=r"(?i)no permissions|NOPERM"):
                ours.config_get("maxmemory")
            memory = ours.info("memory")
        assert (memory["maxmemory"], memory["maxmemory_policy"]) == (4 << 30, "noeviction")


@contextmanager
def running_redis(directory: Path, loader: Loader, manifests: tuple[Manifest, ...]) -> Iterator[int]:
    """The port of a server with the ConfigMap's file, but for where it listens and what it calls its folders."""
    conf = the(manifests, "ConfigMap", "tiered-redis")["data"]["redis.conf"]
    (directory / "users.acl").write_text(loader.secret("tiered-secrets", "users.acl"))
    port = free_port()
    for line, instead in {
        "bind * -::*": "bind 127.0.0.1",
        "port 6379": f"port {port}",
        "dir /data": f"dir {directory}",
        "aclfile /run/secrets/tiered/users.acl": f"aclfile {directory}/users.acl",
    }.items():
        assert conf.splitlines().count(line) == 1
        conf = conf.replace(line, instead)
    (directory / "redis.conf").write_text(conf)
    with (directory / "redis.log").open("wb") as log:
        process = subprocess.Popen([str(find_server_binary()), directory / "redis.conf"], stdout=log, stderr=log)
    try:
        with as_tiered(loader, port) as client:
            until(lambda: answers(client), "Redis answers", within_s=START_S)
        yield port
    finally:
        process.terminate()
        assert process.wait(timeout=START_S) == 0


def as_tiered(loader: Loader, port: int) -> redis.Redis:
    return redis.Redis(port=port, username="tiered", password=loader.secret("tiered-secrets", "redis-password"))


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def environ(
    loader: Loader, manifests: tuple[Manifest, ...], name: str, prefix: str, changes: Mapping[str, str]
) -> dict[str, str]:
    given = loader.environ(pod(manifests, name), name)
    assert urlsplit(given[f"{prefix}REDIS__URL"]).username == "tiered"
    return given | {f"{prefix}{key}": value for key, value in changes.items()}


@contextmanager
def running(service: str, given: Mapping[str, str], directory: Path) -> Iterator[str]:
    """The line that says that it is ready. It has to stop in order."""
    out, err = directory / f"{service}.out", directory / f"{service}.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        argv = [sys.executable, "-m", service]
        process = subprocess.Popen(argv, env={"PATH": "/usr/bin:/bin", **given}, stdout=stdout, stderr=stderr)
    try:
        until(
            lambda: re.search(r" ready on \S+\n", out.read_text()) or process.poll() is not None,
            f"the {service} is ready",
            within_s=START_S,
        )
        assert process.poll() is None, err.read_text()
        yield out.read_text().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=START_S) == 0, err.read_text()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
