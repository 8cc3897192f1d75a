"""The Helm chart: every pair of its main values, what it refuses and how, and its secrets."""

from __future__ import annotations

import base64
import itertools
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
import yaml

from tests.deploy.rendering import (
    CHART,
    NAMESPACE,
    ROOT,
    by_kind,
    documents,
    helm,
    helm_run,
    nested,
    pod,
    pods,
    run,
    the,
    tool,
)
from tests.deploy.rules import complaints
from tiered import __version__

pytestmark = pytest.mark.deploy

EXTERNAL: Final = {"redis.bundled": False, "redis.external.existingSecret": "their-redis"}
CHANGES: Final[dict[str, Mapping[str, Any]]] = {
    "external Redis": EXTERNAL,
    "Redis with AOF": {"redis.persistence.aof": True},
    "monitoring": {"monitoring.enabled": True},
    "no network policy": {"networkPolicy.enabled": False},
    "open namespace": {"networkPolicy.denyAll": False},
    "GPU pool": {"worker.gpuPool.enabled": True},
    "the node's shared memory": {"worker.sharedMemory": "host"},
    "own secrets": {"secrets.existingSecret": "theirs"},
    "TLS": {"coordinator.tls.existingSecret": "their-tls"},
    "own registry": {"image.registry": "registry.example.com/team", "image.tag": "sha256:" + "0" * 64},
    "settings": {
        "worker.settings.why.events_max": 5_000_000,
        "worker.settings.pool.free_target": 0.1,
        "worker.settings.tracing.endpoint": "http://otel:4318/v1/traces",
        "coordinator.settings.log.level": "debug",
        "coordinator.settings.cluster.snapshot_interval_s": 2,
    },
}
KINDS: Final = {
    "": {"Secret": "secrets", "ConfigMap": "configmaps", "Service": "services", "ServiceAccount": "serviceaccounts"},
    "apps": {"Deployment": "deployments", "DaemonSet": "daemonsets", "StatefulSet": "statefulsets"},
    "policy": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "networking.k8s.io": {"NetworkPolicy": "networkpolicies"},
}
FROM_THE_CLUSTER: Final = ("--dry-run=server", "--disable-openapi-validation", "--kube-apiserver")
TEXTS: Final = {"name", "key", "secretName", "serviceAccountName", "storageClassName", "image"}
PAIRS: Final = [(), *((one,) for one in CHANGES), *itertools.combinations(CHANGES, 2)]


def changed(*names: str) -> dict[str, Any]:
    return nested({key: value for name in names for key, value in CHANGES[name].items()})


@pytest.mark.parametrize("names", PAIRS, ids=" and ".join)
def test_whatever_the_values_the_rules_hold(names: tuple[str, ...]) -> None:
    assert complaints(helm(changed(*names))) == []


@pytest.mark.parametrize("release", ["tiered", "blue", "a-release-of-a-team-with-a-very-long-name-indeed"])
def test_whatever_the_release_is_called_the_rules_hold(release: str) -> None:
    manifests = helm(changed("monitoring"), release=release)
    assert complaints(manifests) == []
    assert len({pod.labels["app.kubernetes.io/instance"] for pod in pods(manifests)} | {release}) == 1


@pytest.mark.parametrize("word", ["1234", "true", "1e3", "null"])
def test_names_that_yaml_would_take_for_something_else_stay_names(word: str) -> None:
    values = {
        "nameOverride": word,
        "image.pullSecrets": [word],
        "redis.persistence.aof": True,
        "redis.persistence.storageClass": word,
        "worker.gpuPool.enabled": True,
        "worker.gpuPool.runtimeClassName": word,
        "worker.priorityClassName": word,
        "coordinator.tls.existingSecret": word,
        "secrets.existingSecret": word,
        "monitoring.enabled": True,
        "monitoring.dashboards.label": word,
    }
    manifests = helm(nested(values), release=word)
    found = pod(manifests, "worker")
    assert {found.labels["app.kubernetes.io/name"], found.labels["app.kubernetes.io/instance"]} == {word}
    assert found.spec["imagePullSecrets"] == [{"name": word}]
    assert (found.spec["priorityClassName"], found.spec["runtimeClassName"]) == (word, word)
    external = {"redis.bundled": False, "redis.external.existingSecret": word, "redis.external.key": word}
    for rendered in (manifests, helm(nested(external), release=word)):
        assert [place for one in rendered for place in names_that_are_none(one)] == []


def names_that_are_none(tree: Any, place: str = "") -> Iterator[str]:
    """Where names and labels are something else than text."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if not isinstance(key, str) or (key in TEXTS and not isinstance(value, str)):
                yield f"{place}/{key}: {value!r}"
            if key in ("labels", "matchLabels") and not all(isinstance(one, str) for one in value.values()):
                yield f"{place}/{key}: {value!r}"
            yield from names_that_are_none(value, f"{place}/{key}")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from names_that_are_none(value, f"{place}/{index}")


def test_a_user_of_ten_digits_is_one() -> None:
    found = pod(helm(nested({"user.uid": 1_000_700_000, "user.gid": 1_000_700_001})), "worker")
    context = found.spec["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (
        1_000_700_000,
        1_000_700_001,
        1_000_700_001,
    )
    assert "chown 1000700000:1000700001 " in found.container("directories")["command"][2]


def test_lint_finds_nothing() -> None:
    done = run(tool("helm"), "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout
    assert "0 chart(s) failed" in done.stdout


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"worker.pool.size": "4GB"}, "'/worker/pool/size': '4GB' does not match"),
        ({"wroker.pool.size": "4Gi"}, "additional properties 'wroker' not allowed"),
        ({"worker.settings.pool.polcy": "lru"}, "'/worker/settings/pool': additional properties 'polcy'"),
        ({"worker.settings.node.name": "x"}, "additional properties 'node' not allowed"),
        ({"coordinator.replicas": 0}, "'/coordinator/replicas': minimum"),
        ({"cluster.partitions": 3}, "'/cluster/partitions': value must be one of 1, 2, 4"),
        ({"user.uid": 0}, "'/user/uid': minimum"),
        ({"worker.socketDirectory": "/etc"}, "'/worker/socketDirectory': '/etc' does not match"),
        ({"worker.journalDirectory": "/var/lib/../../etc"}, "'/worker/journalDirectory'"),
        ({"nameOverride": "x\nhostNetwork: true"}, "'/nameOverride'"),
        ({"fullnameOverride": "x: y"}, "'/fullnameOverride'"),
        ({"image.registry": "host # "}, "'/image/registry'"),
        ({"redis.image": "valkey:8 # "}, "'/redis/image'"),
        ({"worker.priorityClassName": "x\n  hostPID: true"}, "'/worker/priorityClassName'"),
        ({"redis.persistence.storageClass": "{a: b}"}, "'/redis/persistence/storageClass'"),
        ({"networkPolicy.monitoringNamespaceLabels": {"kubernetes.io/metadata.name": None}}, "minProperties"),
        ({"redis.bundled": False}, "name the Secret that holds your Redis' URL in redis.external.existingSecret"),
        ({"image.tag": "latest"}, "image.tag: latest names no release"),
        ({"redis.image": "valkey/valkey"}, "redis.image: give a version or a digest"),
        ({"redis.image": "host:5000/valkey:latest"}, "redis.image: give a version or a digest"),
    ],
)
def test_a_wrong_value_is_refused_and_named(values: Mapping[str, Any], said: str) -> None:
    done = helm_run(nested(values))
    assert done.returncode != 0
    assert said in done.stderr


def test_memory_follows_the_pool() -> None:
    worker = pod(helm(nested({"worker.pool.size": "2Ti", "worker.overheadMemory": "512Mi"})), "worker")
    assert worker.container("worker")["resources"]["limits"] == {"memory": f"{(2 << 20) + 512}Mi"}
    (shm,) = (volume["emptyDir"] for volume in worker.spec["volumes"] if volume["name"] == "shm")
    assert shm == {"medium": "Memory", "sizeLimit": f"{(2 << 20) + 64}Mi"}


def test_a_new_version_of_the_chart_alone_restarts_no_pod(tmp_path: Path) -> None:
    done = run(tool("helm"), "package", str(CHART), "--version", "9.9.9", "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rendered = run(tool("helm"), "template", "tiered", str(tmp_path / "tiered-9.9.9.tgz"), "--namespace", NAMESPACE)
    packaged = tuple(documents(rendered.stdout))
    assert [one.workload["spec"] for one in pods(packaged)] == [one.workload["spec"] for one in pods(helm())]


def test_the_package_holds_what_the_links_point_to(tmp_path: Path) -> None:
    assert run(tool("helm"), "package", str(CHART), "--destination", str(tmp_path)).returncode == 0
    with tarfile.open(tmp_path / f"tiered-{__version__}.tgz") as package:
        names = {name.removeprefix("tiered/files/"): name for name in package.getnames() if "/files/" in name}
        dashboards = {f"dashboards/{file.name}" for file in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
        assert dashboards
        assert dashboards | {"tiered.rules.yml"} <= set(names)
        rules = package.extractfile(names["tiered.rules.yml"])
        assert rules is not None
        assert rules.read() == (ROOT / "deploy/prometheus/tiered.rules.yml").read_bytes()


def test_monitoring_brings_the_rules_and_every_dashboard_as_they_are() -> None:
    manifests = helm(changed("monitoring"))
    (rule,) = by_kind(manifests, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/tiered.rules.yml").read_text())
    files = {file.name: file.read_text() for file in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
    shown = [one for one in by_kind(manifests, "ConfigMap") if "grafana_dashboard" in one["metadata"]["labels"]]
    assert {name: text for one in shown for name, text in one["data"].items()} == files


def test_a_rendering_without_a_cluster_makes_new_secrets_each_time() -> None:
    """So docs and values.yaml send those who render without one to existingSecret."""
    first, second = ({**secrets_of(tuple(documents(helm_run({}).stdout)))} for _ in range(2))
    assert set(first) == {"cluster-secret", "admin-token", "read-token", "redis-password", "users.acl"}
    assert all(first[key] != second[key] for key in first)
    assert len(set(first.values())) == len(first)
    assert f">{first['redis-password']} " in first["users.acl"]
    assert min(len(first[key]) for key in first) >= 43


def test_an_upgrade_keeps_the_secrets_and_makes_those_that_are_missing() -> None:
    old = {"cluster-secret": "c" * 43, "admin-token": "a" * 43, "redis-password": "p" * 43}
    old |= {"accepted-cluster-secret": "b" * 43, "users.acl": "user somebody else"}
    with an_api_server_that_has(old) as url:
        done = helm_run({}, *FROM_THE_CLUSTER, url)
    assert done.returncode == 0, done.stderr
    new = secrets_of(tuple(documents(done.stdout)))
    kept = {"cluster-secret", "admin-token", "redis-password", "accepted-cluster-secret"}
    assert {key: new[key] for key in kept} == {key: old[key] for key in kept}
    assert len(new["read-token"]) == 43
    assert f"user tiered on >{old['redis-password']} " in new["users.acl"]


def test_no_secret_is_made_where_one_is_named() -> None:
    manifests = helm(changed("own secrets", "external Redis"))
    assert by_kind(manifests, "Secret") == []
    assert "REDISCLI_AUTH" not in str(manifests)


def test_the_notes_say_how_to_look_and_to_attach() -> None:
    with an_api_server_that_has({}) as url:
        done = run(tool("helm"), "install", "blue", str(CHART), "--namespace", NAMESPACE, *FROM_THE_CLUSTER, url)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:")[1]
    assert "service/blue-tiered-coordinator 8080:8080" in notes
    assert "get secret blue-tiered-secrets" in notes
    assert "user 10001" in notes
    assert "{{" not in notes


def secrets_of(manifests: tuple[dict[str, Any], ...]) -> dict[str, str]:
    data = the(manifests, "Secret", "tiered-secrets")["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


@contextmanager
def an_api_server_that_has(secret: Mapping[str, str]) -> Iterator[str]:
    """As much of the Kubernetes API as Helm asks for before it changes anything: the kinds, and tiered-secrets."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in secret.items()}
    groups = [{"name": name, "versions": [{"groupVersion": f"{name}/v1", "version": "v1"}]} for name in KINDS if name]
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    for group, kinds in KINDS.items():
        version = f"{group}/v1" if group else "v1"
        resources = [
            {"name": name, "kind": kind, "namespaced": True, "verbs": ["get"], "singularName": kind.lower()}
            for kind, name in kinds.items()
        ]
        path = f"/apis/{version}" if group else "/api/v1"
        answers[path] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    if secret:
        answers[f"/api/v1/namespaces/{NAMESPACE}/secrets/tiered-secrets"] = {
            "kind": "Secret",
            "apiVersion": "v1",
            "metadata": {
                "name": "tiered-secrets",
                "labels": {"app.kubernetes.io/managed-by": "Helm"},
                "annotations": {
                    "meta.helm.sh/release-name": "tiered",
                    "meta.helm.sh/release-namespace": NAMESPACE,
                },
            },
            "data": data,
        }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.split("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(missing if answer is None else answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
