"""Manifests as helm and kubectl render them, and what is found in them."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy import tools

Manifest = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy/helm/tiered"
K8S: Final = ROOT / "deploy/k8s"
NAMESPACE: Final = "tiered"


def tool(name: str) -> str:
    path = tools.find(name)
    if path is None:
        pytest.skip(f"there is no {name} here: {tools.HOW}")
    return str(path)


def run(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "KUBECONFIG": "/dev/null"}
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, env=environ, timeout=60)


def helm_run(values: Mapping[str, Any], *flags: str, release: str = "tiered") -> subprocess.CompletedProcess[str]:
    argv = [tool("helm"), "template", release, str(CHART), "--namespace", NAMESPACE, "--values", "-", *flags]
    return run(*argv, stdin=json.dumps(values))


@functools.cache
def _helm(values: str, release: str) -> tuple[Manifest, ...]:
    done = helm_run(json.loads(values), release=release)
    assert done.returncode == 0, done.stderr
    return tuple(documents(done.stdout))


def helm(values: Mapping[str, Any] | None = None, *, release: str = "tiered") -> tuple[Manifest, ...]:
    """values: nested, as in values.yaml. Not to be changed by the caller: each rendering is made once."""
    return _helm(json.dumps(values or {}, sort_keys=True), release)


@functools.cache
def kustomize(folder: Path) -> tuple[Manifest, ...]:
    done = run(tool("kubectl"), "kustomize", str(folder))
    assert done.returncode == 0, done.stderr
    return tuple(documents(done.stdout))


def kustomize_with(scratch: Path, *components: str, base: str = "base") -> tuple[Manifest, ...]:
    """The base and components of deploy/k8s, from a kustomization as a user would write it."""
    relative = os.path.relpath(K8S, scratch)
    text = {
        "resources": [f"{relative}/{base}"],
        "components": [f"{relative}/components/{name}" for name in components],
    }
    (scratch / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return kustomize(scratch)


def documents(text: str) -> Iterator[Manifest]:
    return (document for document in yaml.safe_load_all(text) if document)


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """{"redis.bundled": False} -> {"redis": {"bundled": False}}"""
    tree: dict[str, Any] = {}
    for key, value in dotted.items():
        *groups, leaf = key.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[leaf] = value
    return tree


def by_kind(manifests: tuple[Manifest, ...], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def the(manifests: tuple[Manifest, ...], kind: str, name: str) -> Manifest:
    (found,) = (manifest for manifest in by_kind(manifests, kind) if manifest["metadata"]["name"] == name)
    return found


@dataclass(frozen=True, slots=True)
class Pod:
    """The template of a workload. owner: KIND/NAME."""

    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]
    workload: Manifest

    @property
    def main(self) -> list[dict[str, Any]]:
        """The containers that run as long as the pod does, sidecars among them."""
        sidecars = [one for one in self.spec.get("initContainers", []) if one.get("restartPolicy") == "Always"]
        return [*self.spec["containers"], *sidecars]

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for one in self.main for port in one.get("ports", [])}

    def container(self, name: str) -> dict[str, Any]:
        (found,) = (one for one in self.containers if one["name"] == name)
        return found


def pods(manifests: tuple[Manifest, ...]) -> list[Pod]:
    found = []
    for manifest in manifests:
        if manifest["kind"] in ("Deployment", "DaemonSet", "StatefulSet"):
            template = manifest["spec"]["template"]
            owner = f"{manifest['kind']}/{manifest['metadata']['name']}"
            found.append(Pod(owner, template["metadata"]["labels"], template["spec"], manifest))
    return found


def pod(manifests: tuple[Manifest, ...], container: str) -> Pod:
    """The one that has a container of this name."""
    (found,) = (one for one in pods(manifests) if any(c["name"] == container for c in one.containers))
    return found
