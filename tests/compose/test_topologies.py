"""The profiles for Redis Cluster and Sentinel, each with one worker and one coordinator in a project of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address

import pytest

from tests.compose.project import ROOT, Project, docker
from tests.support.worker_process import until
from tiered.cli.ports import free_ports
from tiered.errors import ConfigError

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

Start = Callable[..., Project]


@pytest.fixture
def start(engine: list[str]) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(kind: str, *services: str) -> Project:
            command = [*engine, "--env-file", str(ROOT / "deploy" / "compose" / f"{kind}.env")]
            project = Project(f"tiered-{kind}-{os.getpid()}", command, port=free_ports(1)[0], environ={})
            stack.callback(project.down)
            project.up("--scale", "worker=1", "--scale", "coordinator=1", *services, "worker", "gateway")
            project.await_healthy("worker", "coordinator", "gateway")
            return project

        yield start


def is_joined(project: Project) -> bool:
    try:
        with project.api() as api:
            return sum(node.alive for node in api.nodes()) == 1 and not api.stats().stale
    except ConfigError:
        return False


def test_a_redis_cluster_is_formed_and_outlives_a_master(start: Start) -> None:
    project = start("redis-cluster", "redis-cluster-form")
    until(lambda: is_joined(project), "the worker has joined", within_s=60)
    [first] = project.containers("redis-cluster-1")
    docker("stop", first)
    ask = "REDISCLI_AUTH=$(cat /run/secrets/redis/password) redis-cli cluster info"
    [second] = project.containers("redis-cluster-2")
    until(lambda: "cluster_state:ok" in docker("exec", second, "sh", "-c", ask), "its replica leads", within_s=60)
    until(lambda: is_joined(project), "the worker is a member again", within_s=60)


def test_a_redis_cluster_comes_together_again_when_all_its_servers_have_other_addresses(start: Start) -> None:
    """As after a restart of the machine: who starts first gets the lowest address."""
    project = start("redis-cluster", "redis-cluster-form")
    until(lambda: is_joined(project), "the worker has joined", within_s=60)
    [form] = project.containers("redis-cluster-form")
    until(lambda: project.health(form) == "healthy", "all six see each other", within_s=60)
    servers = [container for number in range(1, 7) for container in project.containers(f"redis-cluster-{number}")]
    before = {server: address(server) for server in servers}
    lowest, *others = sorted(servers, key=lambda server: before[server])
    docker("stop", form, *servers)
    for server in (*others, lowest):
        docker("start", server)
    assert all(address(server) != then for server, then in before.items())
    docker("start", form)
    ask = "REDISCLI_AUTH=$(cat /run/secrets/redis/password) redis-cli cluster info"

    def serves_at_all() -> bool:
        return all("cluster_state:ok" in docker("exec", server, "sh", "-c", ask) for server in servers)

    until(serves_at_all, "each server's cluster serves", within_s=90)
    until(lambda: project.health(form) == "healthy", "all six see each other again", within_s=60)
    until(lambda: is_joined(project), "the worker is a member again", within_s=60)


def address(container: str) -> IPv4Address:
    text = docker("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", container)
    return IPv4Address(text)


def test_sentinels_name_another_master_when_the_first_is_gone(start: Start) -> None:
    replicas = [f"redis-replica-{number}" for number in (1, 2)]
    sentinels = [f"sentinel-{number}" for number in (1, 2, 3)]
    project = start("sentinel", *replicas, *sentinels)
    until(lambda: is_joined(project), "the worker has joined", within_s=60)
    [sentinel] = project.containers("sentinel-1")

    def master() -> str:
        return docker("exec", sentinel, "redis-cli", "-p", "26379", "sentinel", "get-master-addr-by-name", "tiered")

    def knows_all() -> bool:
        said = docker("exec", sentinel, "redis-cli", "-p", "26379", "info", "sentinel")
        return "slaves=2,sentinels=3" in said

    first = master()
    until(knows_all, "the Sentinels know each other and the replicas", within_s=60)
    [redis] = project.containers("redis")
    docker("stop", redis)
    until(lambda: master() != first, "a replica leads", within_s=150)
    until(lambda: is_joined(project), "the worker is a member again", within_s=60)
    docker("start", redis)
    ask = "REDISCLI_AUTH=$(cat /run/secrets/redis/password) redis-cli role"

    def follows() -> bool:
        return "slave" in docker("exec", redis, "sh", "-c", ask, check=False)

    until(follows, "the one of before follows it", within_s=60)
