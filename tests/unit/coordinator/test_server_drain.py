"""Draining by the API: of the present life alone, by an admin, and with what came of it afterwards."""

from __future__ import annotations

from tests.unit.coordinator.builders import node_info
from tests.unit.coordinator.conftest import Parts
from tiered.types import DrainProgress, DrainState, NodeId

W1 = NodeId("w1")


def test_a_drain_is_asked_of_the_nodes_present_life(parts: Parts) -> None:
    epoch = parts.membership.join(node_info("w1"), lease_ttl_s=30)
    answer = parts.http().post("/v1/nodes/w1/drain")
    assert (answer.status_code, answer.json()["state"]) == (202, "none")
    request = parts.drains.asked(W1)
    assert request is not None
    assert (request.epoch, request.outcome) == (epoch, None)


def test_asking_twice_does_not_forget_what_came_of_it(parts: Parts) -> None:
    epoch = parts.membership.join(node_info("w1"), lease_ttl_s=30)
    outcome = DrainProgress(state=DrainState.DRAINED, moved_blocks=7)
    parts.drains.ended(W1, epoch, outcome)
    assert parts.http().post("/v1/nodes/w1/drain").status_code == 202
    parts.membership.leave(W1, epoch)
    parts.keeper.refresh()
    answer = parts.http().get("/v1/nodes/w1/drain")
    assert answer.json() == {"state": "drained", "left_blocks": 0, "moved_blocks": 7, "stuck_blocks": 0}


def test_who_drains_a_node_that_has_left_is_told_how_to_call_it_back(parts: Parts) -> None:
    epoch = parts.membership.join(node_info("w1"), lease_ttl_s=30)
    parts.drains.ended(W1, epoch, DrainProgress(state=DrainState.DRAINED))
    parts.membership.leave(W1, epoch)
    answer = parts.http().post("/v1/nodes/w1/drain")
    assert answer.status_code == 404
    assert "tiered drain w1 --cancel" in answer.json()["error"]["message"]


def test_a_node_that_is_not_there_is_named(parts: Parts) -> None:
    for verb in ("POST", "GET", "DELETE"):
        answer = parts.http().request(verb, "/v1/nodes/nobody/drain")
        assert (answer.status_code, answer.json()["error"]["field"]) == (404, "node")


def test_a_drain_needs_the_admins_token(parts: Parts) -> None:
    parts.membership.join(node_info("w1"), lease_ttl_s=30)
    http = parts.http(admin_token="secret")
    for verb in ("POST", "DELETE"):
        assert http.request(verb, "/v1/nodes/w1/drain").status_code == 401
    assert parts.drains.asked(W1) is None


def test_a_drain_that_is_called_off_is_forgotten(parts: Parts) -> None:
    parts.membership.join(node_info("w1"), lease_ttl_s=30)
    http = parts.http()
    http.post("/v1/nodes/w1/drain")
    assert http.delete("/v1/nodes/w1/drain").status_code == 204
    assert parts.drains.asked(W1) is None
