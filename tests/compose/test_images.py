"""What is in the images, and what is not."""

from __future__ import annotations

import json

import pytest

from tests.compose.project import IMAGES, docker
from tiered import __version__

pytestmark = [pytest.mark.compose, pytest.mark.usefixtures("engine")]

MIB = 1 << 20
COORDINATOR_BYTES_MAX = 200 * MIB
"""Of what the coordinator has beside its base."""

BASE = "python:3.11-slim-bookworm"


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_nobody_special_and_says_what_it_is(image: str) -> None:
    [about] = json.loads(docker("inspect", f"{image}:latest"))
    assert about["Config"]["User"] == "10001:10001"
    assert about["Config"]["Labels"]["org.opencontainers.image.version"] == __version__
    assert about["Config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert about["Config"]["Entrypoint"][0] in ("tiered", "tiered-worker", "tiered-coordinator")  # no shell around it


def test_the_coordinator_has_no_torch() -> None:
    look = "import importlib.util as u; print(*(u.find_spec(name) for name in ('torch', 'transformers')))"
    argv = ("run", "--rm", "--network", "none", "--entrypoint", "python")
    assert docker(*argv, "tiered-coordinator:latest", "-c", look) == "None None"
    assert "ModuleSpec" in docker(*argv, "tiered-worker:latest", "-c", look)
    image, base = json.loads(docker("inspect", "tiered-coordinator:latest", BASE))
    assert image["Size"] - base["Size"] < COORDINATOR_BYTES_MAX


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_holds_the_package_and_nothing_else_of_the_repository(image: str) -> None:
    look = (
        "import os; print(sorted(set(os.listdir('/')) & {'src', 'tests', 'docs', 'benchmarks', '.git', 'Makefile'}))"
    )
    argv = ("run", "--rm", "--network", "none", "--entrypoint", "python", f"{image}:latest", "-c", look)
    assert docker(*argv) == "[]"
