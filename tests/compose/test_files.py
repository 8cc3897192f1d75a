"""What the files say, without an engine: every combination that docs/compose.md names is accepted."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from tests.compose.project import ROOT

pytestmark = pytest.mark.compose

LONG_RUNNING = {"redis", "coordinator", "gateway", "worker", "engine", "load", "prometheus", "grafana"}


SECRETS = {
    "redis": {"redis"},
    "coordinator": {"admin", "read", "cluster", "redis"},
    "gateway": set(),
    "model": set(),
    "worker": {"cluster", "redis"},
    "engine": {"keys"},
    "load": {"clients"},
    "prometheus": {"read"},
    "grafana": {"grafana"},
}
"""Of each service that is neither `prepare`, which makes them, nor one of the servers that Redis' profiles bring."""


def config(compose: list[str], *argv: str) -> dict[str, Any]:
    done = subprocess.run([*compose, *argv, "config"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout))


@pytest.fixture(scope="module")
def services(compose: list[str]) -> dict[str, Any]:
    return dict(config(compose, "--profile", "demo", "--profile", "monitoring")["services"])


@pytest.mark.parametrize(
    "argv",
    [
        ("-f", "docker-compose.yml", "-f", "deploy/compose.gpu.yml"),
        ("--env-file", "deploy/compose/redis-cluster.env"),
        ("--env-file", "deploy/compose/sentinel.env"),
        ("--profile", "demo", "--profile", "monitoring"),
    ],
)
def test_every_combination_is_accepted(compose: list[str], argv: tuple[str, ...]) -> None:
    assert LONG_RUNNING - {"load", "prometheus", "grafana"} <= set(config(compose, *argv)["services"])


def test_every_service_is_bounded_and_has_no_rights_to_lose(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["user"] == "10001:10001", name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["pids_limit"], name
        assert service["logging"]["options"]["max-size"], name
        assert not service.get("privileged"), name
        assert not service.get("cap_add"), name


def test_nothing_is_reached_from_outside_but_on_loopback(compose: list[str]) -> None:
    read = config(compose, "--profile", "demo", "--profile", "monitoring")
    published = {name: one["ports"] for name, one in read["services"].items() if one.get("ports")}
    assert set(published) == {"gateway", "grafana"}
    for name, ports in published.items():
        for port in ports:
            host = port["host_ip"] if isinstance(port, dict) else port.split(":")[0]
            assert host == "127.0.0.1", name
    assert {name for name, network in read["networks"].items() if not (network or {}).get("internal")} == {"edge"}
    for name, service in read["services"].items():
        assert not {"ipc", "pid"} & set(service), name
        assert service.get("network_mode") in (None, "none"), name


def test_a_service_sees_the_secrets_it_needs_and_none_in_its_environment(services: dict[str, Any]) -> None:
    seen = {
        name: {source.removeprefix("secret-") for source in sources(service) if source.startswith("secret-")}
        for name, service in services.items()
        if name != "prepare"
    }
    assert seen == {name: SECRETS.get(name, {"redis"}) for name in seen}
    assert set(SECRETS) <= set(seen)
    for name, service in services.items():
        for variable in service.get("environment") or {}:
            is_secret = any(word in variable for word in ("SECRET", "TOKEN", "PASSWORD"))
            assert not is_secret or variable.endswith("_FILE"), (name, variable)


def sources(service: dict[str, Any]) -> list[str]:
    """Volumes and folders of the machine that are mounted."""
    volumes = service.get("volumes", [])
    return [one["source"] if isinstance(one, dict) else one.split(":")[0] for one in volumes]


def test_every_image_that_is_not_ours_is_pinned(services: dict[str, Any]) -> None:
    for name, service in services.items():
        image, _, tag = service["image"].rpartition(":")
        assert tag != "latest" or image.startswith("tiered-"), (name, service["image"])


def test_every_service_that_stays_has_a_health_check(services: dict[str, Any]) -> None:
    for name in LONG_RUNNING - {"load"}:
        assert services[name]["healthcheck"]["test"], name
        assert services[name]["restart"] == "unless-stopped", name


def test_who_makes_the_redis_cluster_stays_to_mend_it(compose: list[str]) -> None:
    services = config(compose, "--env-file", "deploy/compose/redis-cluster.env")["services"]
    assert services["redis-cluster-form"]["restart"] == "unless-stopped"
    assert services["redis-cluster-form"]["healthcheck"]["test"]
    waited_for = {
        (name, one["condition"])
        for service in services.values()
        if isinstance(service.get("depends_on"), dict)
        for name, one in service["depends_on"].items()
    }
    assert ("redis-cluster-form", "service_completed_successfully") not in waited_for


def test_a_gpu_is_reserved_and_shared_by_a_worker_and_its_engine(compose: list[str]) -> None:
    services = config(compose, "-f", "docker-compose.yml", "-f", "deploy/compose.gpu.yml")["services"]
    for name in ("worker", "engine"):
        [device] = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == ["0"], name
        assert device["capabilities"] == ["gpu"], name
        assert (services[name]["ipc"], services[name]["pid"]) == ("host", "host"), name
    assert services["worker"]["environment"]["TIERED_WORKER_NODE__SOCKET"] in " ".join(services["engine"]["command"])
