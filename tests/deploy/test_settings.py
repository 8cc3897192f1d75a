"""What the manifests put into the environment, read by the services' own settings."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from pydantic import BaseModel

from coordinator.settings import ENV_PREFIX as COORDINATOR_PREFIX
from coordinator.settings import Settings as CoordinatorSettings
from tests.deploy.rendering import K8S, ROOT, Manifest, Pod, by_kind, helm, kustomize, nested, pod, the
from tests.deploy.rules import complaints
from tests.deploy.test_chart import CHANGES, PAIRS, changed
from tiered import __version__
from tiered.config import load_settings, parse_bytes
from tiered.connectors.vllm.settings import read_settings
from tiered.serving.settings import ENV_PREFIX as SERVE_PREFIX
from tiered.serving.settings import Settings as ServeSettings
from worker.settings import ENV_PREFIX as WORKER_PREFIX
from worker.settings import Settings as WorkerSettings

pytestmark = pytest.mark.deploy

FIELDS: Final = {
    "spec.nodeName": "ip-10-0-0-7.eu-central-1.compute.internal",
    "status.podIP": "10.1.2.3",
    "metadata.name": "tiered-serve-6d5f7c9b8-x2x4z",
}
SERVICES: Final[dict[str, tuple[type[BaseModel], str]]] = {
    "worker": (WorkerSettings, WORKER_PREFIX),
    "coordinator": (CoordinatorSettings, COORDINATOR_PREFIX),
    "engine": (ServeSettings, SERVE_PREFIX),
}
PROBES: Final = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
HANG_UP_S: Final = 4.0
"""What settings.py of the worker asks for beyond its drain."""


class Loader:
    """Loads what a container would: variables as they are, files of Secrets from a folder."""

    def __init__(self, folder: Path, manifests: tuple[Manifest, ...]) -> None:
        self.folder = folder
        self.secrets = {
            one["metadata"]["name"]: {key: base64.b64decode(value).decode() for key, value in one["data"].items()}
            for one in by_kind(manifests, "Secret")
        }

    def environ(self, found: Pod, container: str) -> dict[str, str]:
        environ = {}
        for variable in found.container(container)["env"]:
            value = self._value(variable)
            if value is not None:
                environ[variable["name"]] = self._placed(found, variable["name"], value)
        return environ

    def load(self, found: Pod, container: str) -> Any:
        """Errors: ConfigError for what the service would refuse."""
        model, prefix = SERVICES[container]
        return load_settings(model, environ=self.environ(found, container), env_prefix=prefix).settings

    def secret(self, name: str, key: str) -> str:
        theirs = "rediss://:pw@redis.example.com:6380" if key == "redis-url" else (key * 43)[:43]
        return self.secrets.get(name, {}).get(key, theirs)

    def _value(self, variable: Mapping[str, Any]) -> str | None:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            return FIELDS[source["fieldRef"]["fieldPath"]]
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            return None if reference.get("optional") else self.secret(reference["name"], reference["key"])
        return str(variable["value"])

    def _placed(self, found: Pod, name: str, path: str) -> str:
        """The file that a variable names, written from the Secret that is mounted there."""
        if not name.endswith("_FILE"):
            return path
        mounts = {one["mountPath"]: one["name"] for one in found.container(_of(name))["volumeMounts"]}
        directory, _, leaf = path.rpartition("/")
        (volume,) = (one for one in found.spec["volumes"] if one["name"] == mounts[directory])
        secret, key = _source(volume, leaf)
        file = self.folder / f"{secret}-{leaf}"
        file.write_text(self.secret(secret, key))
        return str(file)


def _of(variable: str) -> str:
    return next(name for name, (_, prefix) in SERVICES.items() if variable.startswith(prefix))


def _source(volume: Mapping[str, Any], leaf: str) -> tuple[str, str]:
    """Which Secret and key are the file of this name in the volume."""
    if "secret" in volume:
        items = volume["secret"].get("items", [{"key": leaf, "path": leaf}])
        sources = [{"name": volume["secret"]["secretName"], "items": items}]
    else:
        sources = [source["secret"] for source in volume["projected"]["sources"]]
    (found,) = ((one["name"], item["key"]) for one in sources for item in one["items"] if item["path"] == leaf)
    return found


@pytest.mark.parametrize("names", PAIRS, ids=" and ".join)
def test_the_services_take_what_the_chart_gives_them(tmp_path: Path, names: tuple[str, ...]) -> None:
    manifests = helm(changed(*names))
    check(Loader(tmp_path, manifests), manifests)


def check(loader: Loader, manifests: tuple[Manifest, ...]) -> None:
    """Load every service of the manifests and hold ports, sizes and times against what is around them."""
    coordinator, worker = pod(manifests, "coordinator"), pod(manifests, "worker")
    settings: CoordinatorSettings = loader.load(coordinator, "coordinator")
    assert settings.http.port == coordinator.ports["http"]
    assert settings.http.advertise_host == FIELDS["status.podIP"]
    assert "" != settings.http.admin_token != settings.http.read_token != ""
    scheme = "HTTP" if settings.http.tls_cert is None else "HTTPS"
    for probe, path in PROBES.items():
        asked = coordinator.container("coordinator")[probe]["httpGet"]
        assert (asked["path"], asked.get("scheme", "HTTP")) == (path, scheme)
    for monitor in by_kind(manifests, "ServiceMonitor"):
        assert [one["scheme"] for one in monitor["spec"]["endpoints"]] == [scheme.lower()]

    node: WorkerSettings = loader.load(worker, "worker")
    assert (node.node.peer_port, node.node.metrics_port) == (worker.ports["peers"], worker.ports["metrics"])
    assert node.node.advertise_host == FIELDS["status.podIP"]
    probed = worker.container("worker")
    assert worker.workload["kind"] != "DaemonSet" or PROBES.keys() <= probed.keys()
    for probe in PROBES.keys() & probed.keys():
        assert probed[probe]["httpGet"] == {"path": PROBES[probe], "port": "metrics"}
    assert node.cluster.secret == settings.cluster.secret
    assert worker.spec["terminationGracePeriodSeconds"] > node.cluster.drain_on_stop_s + HANG_UP_S
    mounts = {one["mountPath"] for one in worker.container("worker")["volumeMounts"]}
    assert {str(node.node.socket.parent), str(node.journal_path.parent)} <= mounts
    limit = _bytes(worker.container("worker")["resources"]["limits"]["memory"])
    if node.pool.device == "cpu":
        assert "/dev/shm" in mounts
        assert limit >= node.pool.bytes + (256 << 20)
        (shm,) = (one for one in worker.spec["volumes"] if one["name"] == "shm")
        kept = "hostPath" in shm
        assert kept or _bytes(shm["emptyDir"]["sizeLimit"]) > node.pool.bytes
        assert node.journal.keep_on_stop == kept
    else:
        assert {"hostIPC": True, "hostPID": True}.items() <= worker.spec.items()

    assert settings.redis == node.redis
    url = urlsplit(settings.redis.url)
    if any(one["metadata"]["name"].endswith("-redis") for one in by_kind(manifests, "StatefulSet")):
        service = the(manifests, "Service", str(url.hostname))
        assert [one["port"] for one in service["spec"]["ports"]] == [url.port]
        assert url.username == "tiered"
        assert url.password
    else:
        assert settings.redis.url == "rediss://:pw@redis.example.com:6380"


def test_settings_of_the_values_reach_the_services(tmp_path: Path) -> None:
    manifests = helm(changed("settings", "GPU pool"))
    loader = Loader(tmp_path, manifests)
    node = loader.load(pod(manifests, "worker"), "worker")
    assert (node.why.events_max, node.pool.free_target) == (5_000_000, 0.1)
    assert node.tracing.endpoint == CHANGES["settings"]["worker.settings.tracing.endpoint"]
    assert node.pool.device == "cuda:0"
    coordinator = loader.load(pod(manifests, "coordinator"), "coordinator")
    assert (coordinator.log.level, coordinator.cluster.snapshot_interval_s) == ("debug", 2.0)


def test_the_pool_and_the_drain_are_those_of_the_values(tmp_path: Path) -> None:
    manifests = helm(nested({"worker.pool.size": "12Gi", "worker.drainSeconds": 0}))
    node = Loader(tmp_path, manifests).load(pod(manifests, "worker"), "worker")
    assert node.pool.bytes == 12 << 30
    assert node.cluster.drain_on_stop_s == 0


@pytest.mark.parametrize("folder", [K8S, K8S / "examples/sidecar"], ids=["default", "sidecar"])
def test_the_services_take_what_kustomize_gives_them(tmp_path: Path, folder: Path) -> None:
    manifests = kustomize(folder)
    check(Loader(tmp_path, manifests), manifests)


def test_the_kustomization_of_the_docs_is_what_it_says(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(# my-cluster/.+?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)
    folder = tmp_path / "my-cluster"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(text.replace("../deploy", os.path.relpath(ROOT / "deploy", folder)))
    manifests = kustomize(folder)
    assert complaints(manifests) == []
    loader = Loader(tmp_path, manifests)
    check(loader, manifests)
    worker = pod(manifests, "worker")
    assert loader.load(worker, "worker").pool.bytes == 64 << 30
    assert worker.container("worker")["image"] == f"registry.example.com/team/tiered-worker:{__version__}"


@pytest.mark.parametrize("example", ["serve", "sidecar"])
def test_tiered_serve_takes_what_its_example_gives_it(tmp_path: Path, example: str) -> None:
    manifests = kustomize(K8S / "examples" / example)
    engine = pod(manifests, "engine")
    settings: ServeSettings = Loader(tmp_path, manifests).load(engine, "engine")
    assert settings.server.port == engine.ports["http"]
    assert settings.cache.socket == Path("/run/tiered/worker.sock")
    grace_s = engine.spec["terminationGracePeriodSeconds"]
    pause_s = engine.container("engine")["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert grace_s >= pause_s + settings.server.grace_s + 10
    assert settings.model.threads == int(engine.container("engine")["resources"]["requests"]["cpu"])


def test_vllm_is_told_what_the_connector_reads() -> None:
    args = pod(kustomize(K8S / "examples/vllm"), "engine").container("engine")["args"]
    (config,) = (json.loads(one.split("=", 1)[1]) for one in args if one.startswith("--kv-transfer-config="))
    assert config["kv_load_failure_policy"] == "recompute"
    assert read_settings(config["kv_connector_extra_config"]).socket == "/run/tiered/worker.sock"


def _bytes(quantity: str) -> int:
    parsed = parse_bytes(f"{quantity}B")
    assert isinstance(parsed, int)
    return parsed
