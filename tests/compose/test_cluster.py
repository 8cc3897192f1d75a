"""The cluster of docker-compose.yml from outside: what `tiered demo` checks of processes, of containers.

Every test leaves the cluster as it found it: three workers with an engine each, all healthy. Each has conversations
of its own, so that what another one has cached is nothing to it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from tests.compose.project import SERVICES, Answer, Project, docker
from tests.support.worker_process import until
from tiered.cli.demo.conversations import Message, deal, read_conversations
from tiered.errors import ConfigError

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

ACME, GLOBEX = "acme", "globex"
NUMBERS = itertools.count(1)
CONVERSATIONS = itertools.cycle(deal(read_conversations())[ACME])


@pytest.fixture
def prompt() -> list[Message]:
    """Some hundred tokens that no other test has asked about."""
    return next(CONVERSATIONS).turn(2)


def other_than(prompt: Sequence[Message]) -> list[Message]:
    """A prompt that shares no block with it, nor with any other that was made like this."""
    first, *others = prompt
    return [{**first, "content": f"{next(NUMBERS)}. {first['content']}"}, *others]


@pytest.fixture
def whole(project: Project) -> Iterator[Project]:
    """The project before and after a test that breaks something."""
    project.await_attached()
    yield project
    project.await_healthy(*SERVICES)
    project.await_attached()


def running(project: Project, service: str) -> list[str]:
    return [each for each in project.containers(service) if project.inspect(each)["State"]["Running"]]


def kill(project: Project, container: str) -> None:
    """SIGKILL for what runs in it, as the kernel does when memory is short: `docker kill` would count as a wish that
    it should stay down."""
    pid = project.inspect(container)["State"]["Pid"]
    try:
        is_ours = project.inspect(container)["Id"] in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
        if not is_ours:  # an engine on another machine: here the number means somebody else
            raise ProcessLookupError
        os.kill(pid, signal.SIGKILL)
    except (PermissionError, ProcessLookupError, FileNotFoundError):
        docker("kill", container)
        docker("start", container)


def await_peer_hits(project: Project, first: str, second: str, prompt: list[Message]) -> None:
    """The second engine finds at its peer what the first has computed. Each time another prompt is tried: what a node
    computed because it was asked too early, or because fetching seemed slower just then, is hot there for good."""

    def found() -> bool:
        told = other_than(prompt)
        computed = project.ask(first, ACME, told)
        answer = project.ask(second, ACME, told)
        assert answer.text == computed.text
        return answer.peer > 0

    until(found, f"{second} finds blocks of {first}'s node", within_s=90)


def saved(project: Project, answer: Answer, engine: str, tenant: str, prompt: list[Message]) -> Answer:
    """The same request once more, as soon as its blocks are stored."""
    assert answer.cached < answer.prompt_tokens
    return project.ask(engine, tenant, prompt)


def test_the_dashboard_is_on_loopback_and_asks_for_a_token(project: Project) -> None:
    url = f"http://127.0.0.1:{project.port}"
    with httpx.Client(base_url=url, trust_env=False) as browser:
        assert browser.get("/readyz").status_code == 200
        assert browser.get("/v1/stats").status_code == 401
        page = browser.get("/", headers={"accept": "text/html"})
        assert (page.status_code, page.headers["location"]) == (303, "/login")
    with project.api() as api:
        nodes = api.nodes()
        assert len([node for node in nodes if node.alive]) == 3
        with pytest.raises(ConfigError), api.with_token(project.secret("read/token")) as reader:
            reader.create_tenant("nobody", {})


def test_no_port_is_open_to_the_world(project: Project) -> None:
    published = {}
    for service in SERVICES:
        for container in project.containers(service):
            ports = project.inspect(container)["NetworkSettings"]["Ports"]
            published[service] = [each for bound in ports.values() for each in bound or []]
            assert all(each["HostIp"] == "127.0.0.1" for each in published[service]), service
    assert [service for service, ports in published.items() if ports] == ["gateway"]
    for network in ("cluster", "clients"):
        [about] = json.loads(docker("network", "inspect", project.network(network)))
        assert about["Internal"], network


def test_containers_run_without_rights_and_within_bounds(project: Project) -> None:
    for service in SERVICES:
        for container in project.containers(service):
            about = project.inspect(container)
            host = about["HostConfig"]
            assert about["Config"]["User"] == "10001:10001", service
            assert host["ReadonlyRootfs"], service
            assert host["CapDrop"] == ["ALL"], service
            assert not host["CapAdd"], service
            assert not host["Privileged"], service
            assert "no-new-privileges:true" in host["SecurityOpt"], service
            assert host["Memory"] > 0, service
            assert 0 < host["PidsLimit"] <= 256, service
            assert host["RestartPolicy"]["Name"] == "unless-stopped", service
            assert host["NetworkMode"] != "host", service


def test_secrets_are_in_files_of_those_who_need_them_alone(project: Project) -> None:
    secrets = [project.secret(path) for path in ("redis/password", "cluster/secret", "admin/token", "read/token")]
    secrets += [project.secret(f"clients/{tenant}") for tenant in (ACME, GLOBEX)]
    assert len(set(secrets)) == len(secrets)
    for service in ("prepare", *SERVICES):
        for container in project.containers(service):
            shown = (
                json.dumps(project.inspect(container))
                + docker("logs", container)
                + docker("top", container, check=False)
            )
            assert not [each for each in secrets if each in shown], service
    seen = {
        service: docker("exec", project.containers(service)[0], "ls", "/run/secrets").split()
        for service in ("redis", "coordinator", "worker", "engine")
    }
    assert seen == {
        "redis": ["redis"],
        "coordinator": ["admin", "cluster", "read", "redis"],
        "worker": ["cluster", "redis"],
        "engine": ["keys"],
    }


def test_a_second_start_leaves_the_secrets_and_the_containers_as_they_are(project: Project) -> None:
    before = {path: project.secret(path) for path in ("redis/password", "cluster/secret", "admin/token")}
    workers = project.containers("worker")
    project.up()
    project._keys.clear()
    assert {path: project.secret(path) for path in before} == before
    assert project.containers("worker") == workers


def test_one_coordinator_leads_and_the_dashboard_outlives_either(whole: Project) -> None:
    leading = []
    for coordinator in whole.containers("coordinator"):
        docker("stop", coordinator)
        try:
            with whole.api() as api:
                until(lambda: api.stats().is_leader, "the one that is left leads and answers", within_s=60)
                leading.append(api.stats().leader)
        finally:
            docker("start", coordinator)
        whole.await_healthy("coordinator")
    assert len(set(leading)) == 2


def test_every_engine_has_a_worker_of_its_own(project: Project) -> None:
    nodes = project.await_attached()
    assert sorted(nodes.values()) == sorted(each[:12] for each in project.containers("worker"))


def test_hits_come_from_every_tier_and_never_across_tenants(whole: Project, prompt: list[Message]) -> None:
    first, second, third = whole.containers("engine")
    opening = whole.ask(first, ACME, prompt)
    assert opening.cached == 0

    hot = whole.ask(first, ACME, prompt)
    assert hot.hot > 0
    assert hot.peer == hot.redis == 0
    assert hot.text == opening.text

    await_peer_hits(whole, first, second, prompt)
    assert whole.ask(first, GLOBEX, prompt).cached == 0

    kept = [prompt, *(other_than(prompt) for _ in range(3))]
    for each in kept:
        whole.ask(first, ACME, each)
    with whole.api() as api:
        with contextlib.suppress(ConfigError):
            api.create_tenant(ACME, {})
        api.change_tenant(ACME, {"hot_limit_bytes": 0})
        until(lambda: api.tenant(ACME).hot.used_bytes == 0, "the hot tier let go", within_s=60)
        api.change_tenant(ACME, {"hot_limit_bytes": None})
        until(lambda: api.tenant(ACME).policy.hot_limit_bytes is None, "the limit is gone", within_s=30)

    found = [whole.ask(third, ACME, each) for each in kept]
    assert found[0].text == opening.text
    assert any(answer.redis for answer in found), "the third node finds them in Redis"


def test_a_killed_worker_costs_hits_and_comes_back_with_its_engine(whole: Project, prompt: list[Message]) -> None:
    engine = whole.containers("engine")[0]
    node = whole.await_attached()[engine]
    [worker] = [each for each in whole.containers("worker") if each.startswith(node)]
    before = whole.ask(engine, ACME, prompt)
    starts = whole.inspect(worker)["State"]["StartedAt"]
    kill(whole, worker)
    assert whole.ask(engine, ACME, prompt).text == before.text
    until(lambda: whole.inspect(worker)["State"]["StartedAt"] != starts, "it is started again", within_s=60)
    whole.await_healthy("worker")
    assert whole.await_attached()[engine] == node
    again = next(CONVERSATIONS).turn(2)
    opening = whole.ask(engine, ACME, again)
    assert saved(whole, opening, engine, ACME, again).hot > 0


def test_without_redis_answers_go_on_and_it_is_used_again_when_it_is_back(
    whole: Project, prompt: list[Message]
) -> None:
    first, second, _ = whole.containers("engine")
    [redis] = whole.containers("redis")
    before = whole.ask(first, ACME, prompt)
    docker("stop", redis)
    try:
        hot = whole.ask(first, ACME, prompt)
        assert (hot.text, hot.hot > 0) == (before.text, True)
        assert whole.ask(second, ACME, prompt).text == before.text
        ready = f"http://127.0.0.1:{whole.port}/readyz"
        until(lambda: httpx.get(ready, trust_env=False).status_code == 503, "the coordinator says so", within_s=30)
    finally:
        docker("start", redis)
    whole.await_healthy("redis", "coordinator")
    with whole.api() as api:
        until(lambda: sum(node.alive for node in api.nodes()) == 3, "every node has joined again", within_s=60)
    await_peer_hits(whole, first, second, prompt)


def test_a_node_that_is_cut_off_serves_alone_and_joins_again_when_healed(
    whole: Project, prompt: list[Message]
) -> None:
    engine, other = whole.containers("engine")[:2]
    node = whole.await_attached()[engine]
    [worker] = [each for each in whole.containers("worker") if each.startswith(node)]
    before = whole.ask(engine, ACME, prompt)
    network = whole.network("cluster")

    def is_alive() -> bool:
        with whole.api() as api:
            return node in {each.node for each in api.nodes() if each.alive}

    assert is_alive()
    docker("network", "disconnect", network, worker)
    try:
        until(lambda: not is_alive(), "its lease lapses", within_s=60)
        alone = whole.ask(engine, ACME, prompt)
        assert (alone.text, alone.hot > 0, alone.peer + alone.redis) == (before.text, True, 0)
        assert whole.ask(other, ACME, prompt).text == before.text
    finally:
        docker("network", "connect", "--alias", "worker", network, worker)
    until(is_alive, "it has joined again", within_s=60)
    await_peer_hits(whole, engine, other, prompt)


def test_five_workers_have_five_engines_and_three_remain_whole(whole: Project) -> None:
    whole.up("--scale", "worker=5", "--scale", "engine=5")
    whole.await_healthy("worker", "engine")
    nodes = whole.await_attached(within_s=120)
    assert len(set(nodes.values())) == 5
    with whole.api() as api:
        until(lambda: sum(node.alive for node in api.nodes()) == 5, "five nodes are there", within_s=60)
    whole.up("--scale", "worker=3", "--scale", "engine=3")
    assert (len(whole.containers("worker")), len(whole.containers("engine"))) == (3, 3)


@pytest.mark.parametrize("service", ["engine", "worker", "coordinator", "redis"])
def test_sigterm_ends_a_container_in_order_within_its_grace(whole: Project, service: str) -> None:
    container = running(whole, service)[-1]
    grace_s = whole.inspect(container)["Config"]["StopTimeout"]
    began = time.monotonic()
    docker("stop", container)
    took_s = time.monotonic() - began
    state = whole.inspect(container)["State"]
    docker("start", container)
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)
    assert took_s < grace_s  # after which it would have been killed


def test_the_load_generator_is_served(project: Project) -> None:
    project.compose("--profile", "demo", "up", "-d", "--no-build", "load")
    try:
        [load] = project.containers("load")
        until(lambda: docker("logs", load).count(" tokens, ") >= 4, "it has answers", within_s=120)
        said = docker("logs", load)
        assert "Error" not in said
        assert all(f"load: {tenant} at" in said for tenant in (ACME, GLOBEX))
        docker("stop", load)
        assert project.inspect(load)["State"]["ExitCode"] == 0
    finally:
        project.compose("--profile", "demo", "rm", "-fsv", "load", check=False)


def test_prometheus_finds_every_process_and_its_rules(project: Project) -> None:
    """Grafana is left out: its image is not built here."""
    project.compose("--profile", "monitoring", "up", "-d", "--no-build", "prometheus")
    try:
        project.await_healthy("prometheus")
        [prometheus] = project.containers("prometheus")

        def up() -> dict[str, int]:
            query = ("exec", prometheus, "promtool", "query", "instant", "-o", "json", "http://127.0.0.1:9090")
            found = json.loads(docker(*query, "sum by (job) (up)"))
            return {each["metric"]["job"]: int(each["value"][1]) for each in found}

        expected = {"tiered-coordinator": 2, "tiered-worker": 3, "tiered-serve": 3}
        until(lambda: up() == expected, "all of them answer a scrape", within_s=90)
        assert project.inspect(prometheus)["NetworkSettings"]["Ports"] in ({}, {"9090/tcp": None})
        docker("stop", prometheus)
        assert project.inspect(prometheus)["State"]["ExitCode"] == 0
    finally:
        project.compose("--profile", "monitoring", "rm", "-fsv", "prometheus", check=False)
