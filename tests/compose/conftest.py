"""One project for all tests here; it is up while they run. Skips where no Docker engine answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.compose.project import IMAGES, SERVICES, Project, compose_command, docker, engine_answers
from tiered.cli.ports import free_ports


@pytest.fixture(scope="session")
def compose() -> list[str]:
    command = compose_command()
    if command is None:
        pytest.skip("neither `docker compose` nor docker-compose is installed")
    return command


@pytest.fixture(scope="session")
def engine(compose: list[str]) -> list[str]:
    if not engine_answers():
        pytest.skip("no Docker engine answers here")
    missing = [image for image in IMAGES if not docker("images", "-q", f"{image}:latest")]
    if missing:
        pytest.skip(f"no image {', '.join(missing)}; `make images` builds them")
    return compose


@pytest.fixture(scope="session")
def project(engine: list[str]) -> Iterator[Project]:
    project = Project(f"tiered-test-{os.getpid()}", engine, port=free_ports(1)[0], environ={})
    try:
        project.put_model()
        project.up()
        project.await_healthy(*SERVICES)
        yield project
    finally:
        if sys.exc_info()[0] is not None or os.environ.get("TIERED_TEST_KEEP_LOGS"):
            print(project.compose("logs", "--tail", "50", check=False))
        project.down()
        assert not docker("volume", "ls", "-q", "--filter", f"label=com.docker.compose.project={project.name}")
