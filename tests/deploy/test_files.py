"""What can be seen in the files as they are: they keep up with settings, release and images. Needs neither helm nor
kubectl.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from coordinator.settings import Settings as CoordinatorSettings
from tests.deploy import prometheus_rule
from tests.deploy.known_settings import settings_schema
from tests.deploy.rendering import CHART, K8S, ROOT
from tiered import __version__
from worker.settings import Settings as WorkerSettings


def test_the_chart_is_of_this_release() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


@pytest.mark.parametrize(("service", "model"), [("worker", WorkerSettings), ("coordinator", CoordinatorSettings)])
def test_the_schema_knows_the_settings_that_the_service_knows(service: str, model: type[Any]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"][service]["properties"]["settings"] == settings_schema(model)


def test_each_default_is_a_value_that_the_schema_lists() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())) == set(schema["properties"]) - {"global"}


def test_kustomize_has_the_images_of_this_release() -> None:
    tags = re.findall(r"newTag: (\S+)}", "".join(file.read_text() for file in K8S.rglob("kustomization.yaml")))
    assert set(tags) == {__version__}


def test_images_and_their_user_are_those_of_the_dockerfile() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    user = values["user"]
    assert f"USER {user['uid']}:{user['gid']}" in dockerfile
    named = set(
        re.findall(r"tiered-(\w+), newTag", "".join(file.read_text() for file in K8S.rglob("kustomization.yaml")))
    )
    assert named == set(re.findall(r"^FROM \S+ AS (coordinator|worker|engine|vllm)$", dockerfile, re.MULTILINE))


def test_no_image_that_is_published_had_the_address_of_an_index() -> None:
    """It may hold a password, and what a stage was built with stays in the history of an image that is made of it."""
    stages = {
        name: (base, body)
        for base, name, body in re.findall(
            r"^FROM (\S+) AS (\S+)$(.*?)(?=^FROM |\Z)", (ROOT / "Dockerfile").read_text(), re.DOTALL | re.MULTILINE
        )
    }
    for target in ("coordinator", "worker", "engine", "vllm"):
        stage = target
        while stage in stages:
            base, body = stages[stage]
            assert not re.search(r"^ARG \w+(INDEX|LINKS)", body, re.MULTILINE), f"{target}: {stage}"
            stage = base


def test_every_board_is_listed_for_kustomize() -> None:
    listed = yaml.safe_load((ROOT / "deploy/grafana/kustomization.yaml").read_text())["configMapGenerator"]
    files = [file for one in listed for file in one["files"]]
    assert sorted(files) == sorted(
        f"dashboards/{file.name}" for file in (ROOT / "deploy/grafana/dashboards").glob("*.json")
    )


def test_the_rules_of_prometheus_are_those_of_their_file() -> None:
    assert prometheus_rule.TARGET.read_text() == prometheus_rule.rule(), "run python -m tests.deploy.prometheus_rule"
