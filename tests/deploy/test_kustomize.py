"""deploy/k8s: it is what the chart renders by default, and so are its components and the values they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.rendering import (
    K8S,
    NAMESPACE,
    Manifest,
    by_kind,
    documents,
    helm,
    kustomize,
    kustomize_with,
    nested,
    pod,
    pods,
    run,
    the,
)
from tests.deploy.rules import complaints
from tiered.redis_url import parse_redis_url

pytestmark = pytest.mark.deploy

HELM_ONLY: Final = ("app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart")
ELSEWHERE: Final = ("Secret", "Namespace")
"""What one of the two leaves to whoever installs it."""
EXTERNAL: Final = {"redis.bundled": False, "redis.external.existingSecret": "tiered-redis-url"}
EXTERNAL_WITH_POLICY: Final = ("external-redis", "network-policy", "external-redis-policy")
SETS: Final[list[tuple[tuple[str, ...], Mapping[str, Any]]]] = [
    (("redis", "network-policy"), {}),
    (("redis",), {"networkPolicy.enabled": False}),
    (("redis", "gpu-pool"), {"networkPolicy.enabled": False, "worker.gpuPool.enabled": True}),
    (("external-redis",), {**EXTERNAL, "networkPolicy.enabled": False}),
    (("redis", "network-policy", "monitoring"), {"monitoring.enabled": True}),
]


@pytest.mark.parametrize(("components", "values"), SETS, ids=["-".join(names) for names, _ in SETS])
def test_components_are_what_the_chart_makes_of_the_same_values(
    tmp_path: Path, components: tuple[str, ...], values: Mapping[str, Any]
) -> None:
    ours = essentials(kustomize_with(tmp_path, *components))
    theirs = essentials(helm(nested(values)))
    assert set(ours) == set(theirs)
    for key in ours:
        assert ours[key] == theirs[key], key


@pytest.mark.parametrize("components", [*(names for names, _ in SETS), EXTERNAL_WITH_POLICY], ids="-".join)
def test_whatever_the_components_the_rules_hold(tmp_path: Path, components: tuple[str, ...]) -> None:
    assert complaints(kustomize_with(tmp_path, *components)) == []


def test_the_folder_itself_is_the_chart_with_its_defaults() -> None:
    manifests = kustomize(K8S)
    assert essentials(manifests) == essentials(helm())
    assert complaints(manifests) == []
    assert {one["metadata"].get("namespace", NAMESPACE) for one in manifests} == {NAMESPACE}


@pytest.mark.parametrize("example", ["serve", "vllm"])
def test_examples_beside_the_cluster_keep_the_rules(example: str) -> None:
    engine = kustomize(K8S / "examples" / example)
    assert complaints((*kustomize(K8S), *engine)) == []
    (found,) = pods(engine)
    (mount,) = (one for one in found.container("engine")["volumeMounts"] if one["name"] == "sockets")
    assert mount == {"name": "sockets", "mountPath": "/run/tiered", "readOnly": True}
    worker = pod(helm(), "worker")
    assert volume(found.spec, "sockets") == volume(worker.spec, "sockets")
    assert found.spec["securityContext"]["runAsUser"] == worker.spec["securityContext"]["runAsUser"]


def test_the_sidecar_needs_nothing_of_its_node() -> None:
    manifests = kustomize(K8S / "examples/sidecar")
    assert complaints(manifests) == []
    assert by_kind(manifests, "DaemonSet") == []
    labels = the(manifests, "Namespace", "tiered")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for found in pods(manifests):
        assert not [one for one in found.spec["volumes"] if "hostPath" in one]
        assert not {"hostIPC", "hostPID", "hostNetwork"} & set(found.spec)
        assert all("runAsUser" not in one["securityContext"] for one in found.containers)


def test_every_worker_is_given_the_same_secrets() -> None:
    """Peers that have not the same refuse each other, also while one is being changed."""
    given = {}
    for where, manifests in {
        "chart": helm(),
        "folder": kustomize(K8S),
        "sidecar": kustomize(K8S / "examples/sidecar"),
    }.items():
        worker = pod(manifests, "worker").container("worker")
        given[where] = {
            one["name"]: one.get("valueFrom", one.get("value"))
            for one in worker["env"]
            if "secretKeyRef" in one.get("valueFrom", {}) or re.search("SECRET|PASSWORD|TOKEN", one["name"])
        }
    assert "TIERED_WORKER_CLUSTER__ACCEPTED_SECRET" in given["folder"]
    assert given["sidecar"] == given["folder"] == given["chart"]


def test_an_external_redis_is_reached_on_the_ports_that_a_url_means(tmp_path: Path) -> None:
    policy = the(kustomize_with(tmp_path, *EXTERNAL_WITH_POLICY), "NetworkPolicy", "tiered-external-redis")
    (rule,) = policy["spec"]["egress"]
    seeds = [*parse_redis_url("redis+sentinel://host/name").seeds, *parse_redis_url("redis+cluster://host").seeds]
    assert {one["port"] for one in rule["ports"]} == {seed.port for seed in seeds}  # of a cluster: any server's


def test_the_secret_that_is_made_has_what_is_mounted_and_is_new_each_time() -> None:
    first, second = (secret(NAMESPACE) for _ in range(2))
    assert first["metadata"] == {"name": "tiered-secrets", "namespace": NAMESPACE}
    wanted = set(keys_of(kustomize(K8S), "tiered-secrets")) - {"accepted-cluster-secret"}
    assert set(first["stringData"]) == wanted
    for key, value in first["stringData"].items():
        assert len(value) >= 43
        assert value != second["stringData"][key]
    password = first["stringData"]["redis-password"]
    assert first["stringData"]["users.acl"].splitlines()[1].startswith(f"user tiered on >{password} ")
    assert secret("other")["metadata"]["namespace"] == "other"


def secret(namespace: str) -> Manifest:
    (made,) = documents(run(str(K8S / "make-secrets"), namespace).stdout)
    return made


def keys_of(tree: Any, name: str) -> list[str]:
    """The keys of a Secret that are mounted or referred to, at any depth."""
    if isinstance(tree, Mapping):
        own = [tree["key"]] if tree.get("name") == name and "key" in tree else []
        if name in (tree.get("name"), tree.get("secretName")):
            own += [item["key"] for item in tree.get("items", [])]
        return own + [key for value in tree.values() for key in keys_of(value, name)]
    if isinstance(tree, list | tuple):
        return [key for value in tree for key in keys_of(value, name)]
    return []


def volume(spec: Mapping[str, Any], name: str) -> Any:
    (found,) = (one for one in spec["volumes"] if one["name"] == name)
    return found


def essentials(manifests: tuple[Manifest, ...]) -> dict[tuple[str, str], Manifest]:
    """Without what only one of the two can have, and in one order where order says nothing."""
    found = {}
    for manifest in manifests:
        if manifest["kind"] not in ELSEWHERE:
            plain = yaml.safe_load(yaml.safe_dump(manifest))
            labels = plain["metadata"]["labels"]
            plain["metadata"] = {
                "name": plain["metadata"]["name"],
                "labels": {key: value for key, value in labels.items() if key not in HELM_ONLY},
            }
            for one in pods((plain,)):
                one.workload["spec"]["template"]["metadata"].pop("annotations", None)
                for container in one.containers:
                    container.get("env", []).sort(key=lambda variable: variable["name"])
                    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                        container.get(probe, {}).get("httpGet", {}).pop("scheme", None)
                one.spec["volumes"].sort(key=lambda volume: volume["name"])
            for group in plain.get("spec", {}).get("groups", []):
                for rule in group["rules"]:
                    rule["expr"] = rule["expr"].split()  # kustomize folds long text anew
            found[plain["kind"], plain["metadata"]["name"]] = plain
    return found
