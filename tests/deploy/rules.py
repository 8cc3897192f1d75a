"""What holds for every rendering, whatever the values. Each rule gives sentences that say what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tests.deploy.rendering import Manifest, Pod, by_kind, pods

MAY_BE_ROOT: Final = "directories"
"""The init container that gives folders of the node to the worker's user."""
ENGINES: Final = {"matchLabels": {"tiered-engine": "serve"}}
"""Of the examples, which may not be there."""
CONFIGURED_ELSEWHERE: Final = {
    "tiered-secrets",
    "tiered-serve-keys",
    "tiered-redis-url",
    "theirs",
    "their-redis",
    "their-tls",
}
"""Secrets that the reader of the docs makes, and those that the tests' values name."""


def each_pod_is_confined(manifests: tuple[Manifest, ...]) -> Iterator[str]:
    for pod in pods(manifests):
        spec = pod.spec
        if spec.get("enableServiceLinks") is not False:
            yield f"{pod.owner}: service links would put TIERED_... into the environment"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.owner}: it has a token for the Kubernetes API"
        if spec.get("hostNetwork"):
            yield f"{pod.owner}: it is in the node's network"
        context = spec.get("securityContext", {})
        if context.get("seccompProfile") != {"type": "RuntimeDefault"} or context.get("runAsNonRoot") is not True:
            yield f"{pod.owner}: its security context is {context}"
        for container in pod.containers:
            yield from _container_is_confined(pod, container)


def _container_is_confined(pod: Pod, container: Mapping[str, Any]) -> Iterator[str]:
    where, context = f"{pod.owner}, {container['name']}", container.get("securityContext", {})
    if context.get("allowPrivilegeEscalation") is not False or context.get("readOnlyRootFilesystem") is not True:
        yield f"{where}: its security context is {context}"
    if context.get("capabilities", {}).get("drop") != ["ALL"] or context.get("privileged"):
        yield f"{where}: it keeps capabilities"
    may_be_root = container["name"] == MAY_BE_ROOT and container in pod.spec.get("initContainers", [])
    if not may_be_root and (context.get("runAsUser", 1) == 0 or context.get("runAsNonRoot") is False):
        yield f"{where}: it runs as root"
    if set(context.get("capabilities", {}).get("add", [])) - ({"CHOWN", "FOWNER"} if may_be_root else set()):
        yield f"{where}: it gets capabilities"


def each_container_is_bounded_and_pinned(manifests: tuple[Manifest, ...]) -> Iterator[str]:
    for pod in pods(manifests):
        for container in pod.containers:
            where, resources = f"{pod.owner}, {container['name']}", container.get("resources", {})
            if set(resources.get("requests", {})) < {"cpu", "memory"} or "memory" not in resources.get("limits", {}):
                yield f"{where}: its resources are {resources}"
            if (
                not re.search(r"(:[^:/]+|@sha256:[0-9a-f]{64})$", container["image"])
                or ":latest" in container["image"]
            ):
                yield f"{where}: {container['image']} is no release"
        for volume in pod.spec.get("volumes", []):
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{pod.owner}: {volume['name']} may fill the node"


def each_main_container_is_probed(manifests: tuple[Manifest, ...]) -> Iterator[str]:
    for pod in pods(manifests):
        for container in pod.main:
            names = {port["name"] for port in container.get("ports", [])}
            wanted = {"startupProbe", "livenessProbe"}
            if container in pod.spec["containers"]:
                wanted.add("readinessProbe")
            for probe in wanted - set(container):
                yield f"{pod.owner}, {container['name']}: no {probe}"
            for probe in wanted & set(container):
                action = container[probe].get("httpGet") or container[probe].get("tcpSocket") or {}
                if action and action["port"] not in names:
                    yield f"{pod.owner}, {container['name']}: {probe} asks port {action['port']}, of {names}"


def what_is_mounted_is_there(manifests: tuple[Manifest, ...]) -> Iterator[str]:
    secrets = CONFIGURED_ELSEWHERE | {one["metadata"]["name"] for one in by_kind(manifests, "Secret")}
    configs = {one["metadata"]["name"] for one in by_kind(manifests, "ConfigMap")}
    for pod in pods(manifests):
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in pod.workload["spec"].get("volumeClaimTemplates", [])}
        mounted = {mount["name"] for container in pod.containers for mount in container.get("volumeMounts", [])}
        if volumes != mounted:
            yield f"{pod.owner}: volumes {volumes ^ mounted} are not both there and mounted"
        for volume in pod.spec.get("volumes", []):
            if "hostPath" in volume and volume["name"] not in ("sockets", "journal", "shm"):
                yield f"{pod.owner}: {volume['name']} is the node's"
        references = [*_named(pod.spec, "secretKeyRef"), *_named(pod.spec, "secret")]
        for name in {reference.get("name") or reference["secretName"] for reference in references}:
            if name not in secrets:
                yield f"{pod.owner}: nobody makes the Secret {name}"
        for ref in _named(pod.spec, "configMap"):
            if ref["name"] not in configs:
                yield f"{pod.owner}: nobody makes the ConfigMap {ref['name']}"


def selectors_select(manifests: tuple[Manifest, ...]) -> Iterator[str]:
    everyone = pods(manifests)
    for pod in everyone:
        if not selects(pod.workload["spec"]["selector"], pod.labels):
            yield f"{pod.owner}: its selector is not of its own pods"
        others = [
            one.owner for one in everyone if one is not pod and selects(pod.workload["spec"]["selector"], one.labels)
        ]
        if others:
            yield f"{pod.owner}: its selector takes pods of {others}"
        for spread in pod.spec.get("topologySpreadConstraints", []):
            if not selects(spread["labelSelector"], pod.labels):
                yield f"{pod.owner}: it is spread by others' labels"
    for service in by_kind(manifests, "Service"):
        behind = [pod for pod in everyone if selects({"matchLabels": service["spec"]["selector"]}, pod.labels)]
        if len(behind) != 1:
            yield f"Service {service['metadata']['name']}: {len(behind)} workloads are behind it"
        for pod in behind:
            for port in service["spec"]["ports"]:
                if port["targetPort"] not in pod.ports:
                    yield f"Service {service['metadata']['name']}: {pod.owner} has no port {port['targetPort']}"
    for budget in by_kind(manifests, "PodDisruptionBudget"):
        if not any(selects(budget["spec"]["selector"], pod.labels) for pod in everyone):
            yield f"PodDisruptionBudget {budget['metadata']['name']} is of no pod"
    for monitor in by_kind(manifests, "ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            if not any(
                selects(monitor["spec"]["selector"], service["metadata"]["labels"])
                and endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
                for service in by_kind(manifests, "Service")
            ):
                yield f"ServiceMonitor {monitor['metadata']['name']}: no Service has that port"
    for monitor in by_kind(manifests, "PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            found = [pod for pod in everyone if selects(monitor["spec"]["selector"], pod.labels)]
            if not found and monitor["spec"]["selector"] == ENGINES:
                continue
            if not found or any(endpoint["port"] not in pod.ports for pod in found):
                yield f"PodMonitor {monitor['metadata']['name']}: its pods have no such port"


def policies_open_what_is_needed(manifests: tuple[Manifest, ...]) -> Iterator[str]:
    """And nothing else: each port of a policy is one of its pods', each port of a pod is opened by a policy."""
    policies = by_kind(manifests, "NetworkPolicy")
    everyone = pods(manifests)
    if not policies:
        return
    opened = set()
    for policy in policies:
        name, spec = policy["metadata"]["name"], policy["spec"]
        own = [pod for pod in everyone if selects(spec["podSelector"], pod.labels)]
        for rule in spec.get("ingress", []):
            if not rule.get("from"):
                yield f"NetworkPolicy {name}: anybody may enter"
            for port in rule["ports"]:
                opened |= {(pod.owner, port["port"]) for pod in own}
                if own and not any(port["port"] in pod.ports.values() for pod in own):
                    yield f"NetworkPolicy {name}: nobody listens on {port['port']}"
        for rule in spec.get("egress", []):
            for peer in rule.get("to", []):
                if set(peer) == {"podSelector"}:
                    targets = [pod for pod in everyone if selects(peer["podSelector"], pod.labels)]
                    for port in rule["ports"]:
                        if targets and not any(port["port"] in pod.ports.values() for pod in targets):
                            yield f"NetworkPolicy {name}: nobody listens on {port['port']} there"
                        for target in targets:
                            for pod in own:
                                if not _may_enter(policies, pod, target, port["port"]):
                                    yield f"{pod.owner} may leave for {target.owner}:{port['port']}, and not enter"
    for pod in everyone:
        for port in pod.ports.values():
            if (pod.owner, port) not in opened:
                yield f"{pod.owner}: no policy opens {port}"


def _may_enter(policies: list[Manifest], source: Pod, target: Pod, port: int) -> bool:
    return any(
        selects(policy["spec"]["podSelector"], target.labels)
        and any(
            port in [one["port"] for one in rule["ports"]]
            and any("podSelector" in peer and selects(peer["podSelector"], source.labels) for peer in rule["from"])
            for rule in policy["spec"].get("ingress", [])
        )
        for policy in policies
    )


def names_are_usable(manifests: tuple[Manifest, ...]) -> Iterator[str]:
    seen = set()
    for manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
            yield f"{kind} {name}: no name of Kubernetes"
        if (kind, name) in seen:
            yield f"{kind} {name} is there twice"
        seen.add((kind, name))


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """As LabelSelector: all of matchLabels, all of matchExpressions (In only)."""
    expressions = selector.get("matchExpressions", [])
    assert all(one["operator"] == "In" for one in expressions)
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(one["key"]) in one["values"] for one in expressions
    )


def _named(tree: Any, key: str) -> Iterator[Any]:
    """Every value under this key, at any depth."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            if name == key:
                yield value
            yield from _named(value, key)
    elif isinstance(tree, list):
        for value in tree:
            yield from _named(value, key)


RULES: Final[tuple[Callable[[tuple[Manifest, ...]], Iterator[str]], ...]] = (
    each_pod_is_confined,
    each_container_is_bounded_and_pinned,
    each_main_container_is_probed,
    what_is_mounted_is_there,
    selectors_select,
    policies_open_what_is_needed,
    names_are_usable,
)


def complaints(manifests: tuple[Manifest, ...]) -> list[str]:
    return [sentence for rule in RULES for sentence in rule(manifests)]
