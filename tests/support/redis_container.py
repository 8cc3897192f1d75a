"""A Redis or Valkey in a container, where a Docker engine can be had: the servers that people really deploy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

IMAGE: Final = os.environ.get("TIERED_TEST_REDIS_IMAGE", "redis:7-bookworm")
"""Named by its official name; whichever tag the engine has or can fetch."""

PORT: Final = 6379
ENGINE_SOCKET: Final = Path("/var/run/docker.sock")

os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")  # the fixture stops what it started; no second image


@contextmanager
def running_container(image: str = IMAGE) -> Iterator[str]:
    """The URL of a server of its own; skips where there is no engine, or it has no such image."""
    if not os.environ.get("DOCKER_HOST") and not ENGINE_SOCKET.is_socket():  # asked in vain, docker leaks a socket
        pytest.skip("no Docker engine here")
    docker = pytest.importorskip("docker")
    containers = pytest.importorskip("testcontainers.core.container")
    waiting = pytest.importorskip("testcontainers.core.wait_strategies")
    try:
        with closing(docker.from_env()) as engine:
            engine.ping()
    except docker.errors.DockerException:
        pytest.skip("no Docker engine answers here")
    server = containers.DockerContainer(image).with_exposed_ports(PORT)
    server.waiting_for(waiting.LogMessageWaitStrategy("Ready to accept connections").with_startup_timeout(60))
    try:
        server.start()
    except docker.errors.APIError as error:
        pytest.skip(f"the Docker engine cannot start {image}: {error.explanation}")
    try:
        yield f"redis://{server.get_container_host_ip()}:{server.get_exposed_port(PORT)}"
    finally:
        server.stop()
