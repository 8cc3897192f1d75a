"""The proof of isolation on a live cluster: it finds what is so, and it finds a leak where there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.integration.processes import Place, temporary_place, until
from tests.integration.test_up import Up
from tests.support.content import SCOPE
from tiered.cli.api import CoordinatorClient
from tiered.cli.selftest import isolation
from tiered.cli.selftest.isolation import COMPUTED, OWNER, STRANGER
from tiered.client.port import Match
from tiered.client.remote import RemoteClient
from tiered.types import TenantId

TOKENS_PER_S = 3_000
"""Of an engine that has said so: then a fetch of four blocks is given up after some milliseconds."""


@pytest.fixture
def n_engines() -> int:
    return 2


@pytest.fixture
def up(n_engines: int) -> Iterator[Up]:
    """Two workers, an engine attached to as many as said, which compute as other engines do."""
    with temporary_place() as place, ExitStack() as stack:
        started = Up(place)
        stack.callback(started.process.wait, 10)
        stack.callback(started.process.kill)
        for worker in started.state()["workers"][:n_engines]:
            engine = stack.enter_context(closing(RemoteClient.attach(worker["socket_path"], SCOPE, engine="test")))
            engine.note_prefill(n_tokens=2 * TOKENS_PER_S, took_s=2.0)
        until(lambda: sum(node["engines"] for node in nodes(place)) == n_engines, "the engines are known")
        yield started


def nodes(place: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(place.run("nodes", "--json").stdout)["nodes"]
    return found


def selftest(up: Up, *flags: str) -> tuple[int, dict[str, dict[str, object]]]:
    """Exit code, and the finding of each path by its first words."""
    outcome = up.place.run("selftest", "isolation", "--json", *flags)
    assert outcome.stdout, outcome.stderr
    paths = json.loads(outcome.stdout)["paths"]
    return outcome.returncode, {finding["path"].split(" (")[0].split(" of ")[0]: finding for finding in paths}


def test_two_tenants_see_nothing_of_each_other_on_any_path(up: Up) -> None:
    code, findings = selftest(up, "--restart")
    assert set(findings) == {"the same worker", "Redis", "a peer", "the API", "after a restart"}
    not_tried = {finding["owner"] for finding in findings.values() if not finding["tried"]}
    assert not_tried <= {COMPUTED}, "on a busy machine it may be so"
    assert [finding for finding in findings.values() if not finding["ok"]] == []
    assert {finding["stranger"] for finding in findings.values()} <= {"nothing", "-"}
    assert code == 0


@pytest.mark.parametrize("n_engines", [1])
def test_a_machine_with_one_worker_is_proven_as_far_as_it_goes(up: Up) -> None:
    code, findings = selftest(up)
    assert [path for path, finding in findings.items() if not finding["tried"] and path != "Redis"] == ["a peer"]
    assert [finding for finding in findings.values() if not finding["ok"]] == []
    assert findings["the API"]["owner"] == "4 blocks"
    assert code == 0


def test_a_leak_is_found_on_every_path(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that took everybody for the owner, and a coordinator that answered everybody as it does the owner."""

    def match_as_owner(trial: isolation._Trial, engine: RemoteClient, tenant: TenantId, number: int) -> Match:
        return engine.match_chain(engine.chain(trial.prompt(number), tenant=OWNER), is_counted=False)

    question = isolation._Trial.question
    monkeypatch.setattr(isolation._Trial, "_match", match_as_owner)
    monkeypatch.setattr(isolation._Trial, "question", lambda trial, _, number: question(trial, OWNER, number))
    monkeypatch.setattr(CoordinatorClient, "with_token", lambda client, _: CoordinatorClient(client.url))
    with CoordinatorClient(up.state()["coordinator_url"]) as client:
        findings = isolation.prove_isolation(client, restart=False)
    assert [finding.path for finding in findings if finding.tried and finding.ok] == []
    assert {finding.stranger for finding in findings if finding.tried} & {"nothing"} == set()


def test_it_leaves_no_tenant_and_no_count_behind(up: Up) -> None:
    for _ in range(2):
        assert selftest(up)[0] == 0
    tenants = json.loads(up.place.run("tenants", "list", "--json").stdout)["tenants"]
    assert {tenant["policy"]["tenant"] for tenant in tenants if tenant["named"]} == {"default"}
    assert {tenant["policy"]["tenant"] for tenant in tenants} <= {"default", OWNER, STRANGER}
    assert json.loads(up.place.run("stats", "--json").stdout)["tokens"]["asked"] == 0


def test_what_a_killed_one_left_is_named_with_what_to_do(up: Up) -> None:
    assert up.place.run("tenants", "create", STRANGER).returncode == 0
    outcome = up.place.run("selftest", "isolation")
    assert outcome.returncode == 2
    assert outcome.stderr.splitlines()[-1].endswith(f"if none runs, `tiered tenants delete {STRANGER}`")
    assert OWNER not in {tenant["policy"]["tenant"] for tenant in _named(up)}


def _named(up: Up) -> list[dict[str, Any]]:
    tenants = json.loads(up.place.run("tenants", "list", "--json").stdout)["tenants"]
    return [tenant for tenant in tenants if tenant["named"]]
