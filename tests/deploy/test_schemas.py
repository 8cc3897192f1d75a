"""Every manifest against the API of several releases of Kubernetes, unknown fields refused, and against what the
Prometheus operator's kinds must have.
"""

from __future__ import annotations

import copy
import functools
import json
import zipfile
from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs
import pytest
import yaml

from tests.deploy import tools
from tests.deploy.rendering import CHART, K8S, Manifest, helm, kustomize, pod, the
from tests.deploy.test_chart import PAIRS, changed

pytestmark = pytest.mark.deploy

RELEASES: Final = ("1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.37")
OPERATOR: Final = "monitoring.coreos.com/v1"


@functools.cache
def definitions(release: str) -> dict[str, Any]:
    if not tools.SCHEMAS_FILE.exists():
        pytest.skip("the schemas of the Kubernetes API are not here: make test-deploy fetches them")
    with zipfile.ZipFile(tools.SCHEMAS_FILE) as schemas:
        name = f"kubernetes_validate/kubernetes-json-schema/v{release}.0-local-strict/_definitions.json"
        read: dict[str, Any] = json.loads(schemas.read(name))
    return read


@functools.cache
def validator(release: str, api_version: str, kind: str) -> jsonschema_rs.Draft202012Validator:
    group, _, version = api_version.rpartition("/")
    wanted = {"group": group, "version": version, "kind": kind}
    known = definitions(release)
    (name,) = (
        name for name, schema in known["$defs"].items() if wanted in schema.get("x-kubernetes-group-version-kind", [])
    )
    return jsonschema_rs.Draft202012Validator({**known, "$ref": f"#/$defs/{name}"})


def errors(release: str, manifest: Manifest) -> list[str]:
    where = f"{manifest['kind']}/{manifest['metadata']['name']}"
    if manifest["apiVersion"] == OPERATOR:
        return [f"{where}: {error}" for error in _operator_errors(manifest)]
    found = validator(release, manifest["apiVersion"], manifest["kind"]).iter_errors(manifest)
    return [f"{where}: {list(error.instance_path)}: {error.message}" for error in found]


def _operator_errors(manifest: Manifest) -> Iterator[str]:
    """The CRDs are not in the schemas: the fields used here, with their types."""
    endpoint = {"port", "path", "interval", "scheme", "tlsConfig", "authorization", "relabelings"}
    spec = manifest["spec"]
    if manifest["kind"] in ("ServiceMonitor", "PodMonitor"):
        endpoints = "endpoints" if manifest["kind"] == "ServiceMonitor" else "podMetricsEndpoints"
        if set(spec) != {"selector", endpoints}:
            yield f"spec has {set(spec)}"
        for one in spec[endpoints]:
            if not set(one) <= endpoint or not isinstance(one["port"], str):
                yield f"an endpoint has {set(one)}"
            if not set(one.get("tlsConfig", {})) <= {"ca", "serverName"}:
                yield f"tlsConfig has {set(one['tlsConfig'])}"
            if not {*one.get("authorization", {})} <= {"type", "credentials"}:
                yield f"authorization has {set(one['authorization'])}"
    elif manifest["kind"] == "PrometheusRule":
        for group in spec["groups"]:
            if not set(group) <= {"name", "interval", "rules"}:
                yield f"a group has {set(group)}"
            for rule in group["rules"]:
                known = {"alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations"}
                if not set(rule) <= known or ("alert" in rule) == ("record" in rule) or "expr" not in rule:
                    yield f"a rule has {set(rule)}"
                for key, text in {**rule.get("labels", {}), **rule.get("annotations", {})}.items():
                    if not isinstance(text, str):
                        yield f"{key} is {text!r}, and must be text"
    else:
        yield "a kind that is not known here"


@functools.cache
def everything() -> tuple[Manifest, ...]:
    """Each manifest that any pair of values or any folder of deploy/k8s gives, once."""
    rendered = [helm(changed(*names)) for names in PAIRS]
    rendered += [
        kustomize(folder) for folder in (K8S, *(K8S / "examples" / name for name in ("serve", "vllm", "sidecar")))
    ]
    once = {
        json.dumps(one, sort_keys=True): one for manifests in rendered for one in manifests if one["kind"] != "Secret"
    }
    return (*once.values(), the(helm(), "Secret", "tiered-secrets"))


@pytest.mark.parametrize("release", RELEASES)
def test_every_manifest_is_one_of_the_api(release: str) -> None:
    assert [error for manifest in everything() for error in errors(release, manifest)] == []


def test_what_is_none_is_found() -> None:
    broken = copy.deepcopy(the(helm(), "DaemonSet", "tiered-worker"))
    broken["spec"]["template"]["spec"]["enableServiceLink"] = False
    broken["spec"]["minReadySeconds"] = "ten"
    assert len(errors("1.33", broken)) == 2
    monitor = copy.deepcopy(the(helm(changed("monitoring")), "PodMonitor", "tiered-worker"))
    monitor["spec"]["podMetricsEndpoints"][0]["targetport"] = 9464
    assert len(errors("1.33", monitor)) == 1


def test_the_oldest_release_is_the_one_that_the_chart_asks_for() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={RELEASES[0]}.0-0"
    sleep = pod(helm(), "coordinator").container("coordinator")["lifecycle"]["preStop"]
    assert set(sleep) == {"sleep"}, "without it an older release would do"
