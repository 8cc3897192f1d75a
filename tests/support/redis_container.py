"""Redis, Valkey and a Redis Cluster in containers, where a Docker engine can be had: the servers that people deploy.

What cannot be had, the engine or an image, skips the test with the reason. Containers are gone at the end; those of
killed runs are taken away by testcontainers' reaper, or where its image cannot be had, by the next run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from tests.support.redis_server import eventually
from tests.support.redis_topologies import free_ports

REDIS_IMAGE: Final = os.environ.get("TIERED_TEST_REDIS_IMAGE", "redis:7-bookworm")
VALKEY_IMAGE: Final = os.environ.get("TIERED_TEST_VALKEY_IMAGE", "valkey/valkey:8-bookworm")
"""By their official names; the engine may have them already."""

PORT: Final = 6379
ENGINE_SOCKET: Final = Path("/var/run/docker.sock")
N_MASTERS: Final = 3

_START_S: Final = 60.0
_LABEL: Final = "tiered.tests.pid"
_OPEN: Final = "--bind 0.0.0.0 --protected-mode no --save '' --appendonly no --maxmemory-policy noeviction"


@contextmanager
def running_container(image: str) -> Iterator[str]:
    """The URL of a server of its own."""
    server_name = _server_of(image)
    server = _container(image).with_exposed_ports(PORT).with_command(_shell(f"exec {server_name} {_OPEN}"))
    with _started(server, image):
        host, port = server.get_container_host_ip(), int(server.get_exposed_port(PORT))
        eventually(lambda: _answers(host, port), within_s=_START_S)
        yield f"redis://{host}:{port}"


@contextmanager
def running_cluster_container(image: str) -> Iterator[str]:
    """The URL of a Redis Cluster of three masters in one container.

    Each has a port of the same number inside and outside, so that the addresses that the servers tell each other and
    those that they tell clients are the same.
    """
    server_name = _server_of(image)
    ports = free_ports(N_MASTERS)
    config = "--cluster-enabled yes --cluster-announce-ip 127.0.0.1 --cluster-node-timeout 2000"
    starts = [f"{server_name} {_OPEN} {config} --port {port} --cluster-config-file {port}.conf &" for port in ports]
    hosts = " ".join(f"127.0.0.1:{port}" for port in ports)
    cli = server_name.replace("-server", "-cli")
    awaits = [f"until {cli} -p {port} ping; do sleep 0.1; done;" for port in ports]
    script = " ".join(["cd /tmp;", *starts, *awaits, f"{cli} --cluster create {hosts} --cluster-yes; wait"])
    server = _container(image).with_command(_shell(script))
    for port in ports:
        server.with_bind_ports(port, port)
    if os.environ.get("DOCKER_HOST", "unix:").partition(":")[0] != "unix":
        pytest.skip("the Docker engine is elsewhere, where a cluster that calls itself 127.0.0.1 is not found")
    with _started(server, image):
        for port in ports:
            eventually(lambda port=port: _is_whole(port), within_s=_START_S)  # type: ignore[misc]
        yield f"redis+cluster://{','.join(f'127.0.0.1:{port}' for port in ports)}"


@contextmanager
def _started(server: Any, image: str) -> Iterator[None]:
    import docker

    try:
        server.start()
    except (docker.errors.NotFound, docker.errors.APIError) as error:
        pytest.skip(f"the Docker engine can neither find nor fetch {image}: {error.explanation}")
    try:
        yield
    finally:
        server.stop()


def _container(image: str) -> Any:
    _require_engine()
    from testcontainers.core.container import DockerContainer

    return DockerContainer(image).with_kwargs(labels={_LABEL: str(os.getpid())})


@cache
def _engine_lacks() -> str:
    """Why no container can be started here; empty if they can. Looks once, and prepares what is needed once."""
    if not os.environ.get("DOCKER_HOST") and not ENGINE_SOCKET.is_socket():  # asked in vain, docker leaks a socket
        return "no Docker engine here"
    docker = pytest.importorskip("docker")
    config = pytest.importorskip("testcontainers.core.config").testcontainers_config
    try:
        with closing(docker.from_env()) as engine:
            engine.ping()
            if not config.ryuk_disabled and not _has(engine, config.ryuk_image):
                config.ryuk_disabled = True
            _remove_left(engine)
    except docker.errors.DockerException as error:
        return f"no Docker engine answers here: {error}"
    return ""


def _require_engine() -> None:
    if reason := _engine_lacks():
        pytest.skip(reason)


def _has(engine: Any, image: str) -> bool:
    """Whether the engine has an image, or has fetched it now."""
    import docker

    try:
        engine.images.get(image)
    except docker.errors.ImageNotFound:
        try:
            engine.images.pull(image)
        except docker.errors.APIError:
            return False
    return True


def _remove_left(engine: Any) -> None:
    """Containers of test runs that are gone."""
    for left in engine.containers.list(all=True, filters={"label": _LABEL}):
        if not Path(f"/proc/{left.labels[_LABEL]}").exists():
            left.remove(force=True, v=True)


def _server_of(image: str) -> str:
    return "valkey-server" if "valkey" in image else "redis-server"


def _shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def _answers(host: str, port: int) -> bool:
    with closing(redis.Redis(host=host, port=port, socket_timeout=2, protocol=2)) as client:
        try:
            return bool(client.ping())
        except (redis.RedisError, OSError):
            return False


def _is_whole(port: int) -> bool:
    with closing(redis.Redis(port=port, socket_timeout=2, protocol=2)) as client:
        try:
            about = client.execute_command("CLUSTER", "INFO")  # type: ignore[no-untyped-call]
        except (redis.RedisError, OSError):
            return False
    return "cluster_state:ok" in str(about) and f"cluster_size:{N_MASTERS}" in str(about)
