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
from tiered.client.remote import RemoteClient


@pytest.fixture
def up() -> Iterator[Up]:
    """Two workers, an engine attached to each."""
    with temporary_place() as place, ExitStack() as stack:
        started = Up(place)
        stack.callback(started.process.wait, 10)
        stack.callback(started.process.kill)
        for worker in started.state()["workers"]:
            stack.enter_context(closing(RemoteClient.attach(worker["socket_path"], SCOPE, engine="test")))
        until(lambda: all(node["engines"] for node in nodes(place)), "all nodes have told of their engines")
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
    assert [finding for finding in findings.values() if not finding["tried"] or not finding["ok"]] == []
    assert {finding["stranger"] for finding in findings.values()} == {"nothing"}
    assert code == 0
    names = json.loads(up.place.run("tenants", "list", "--json").stdout)["tenants"]
    assert [tenant for tenant in names if tenant["named"] and "selftest" in tenant["policy"]["tenant"]] == []
