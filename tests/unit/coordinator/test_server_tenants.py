"""``/v1/tenants`` against a real server: what is accepted, what is refused, and with which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from coordinator.server.tenants import CHANGE_ATTEMPTS
from tests.unit.coordinator.builders import node_info
from tests.unit.coordinator.conftest import Parts
from tiered.cluster.ledger import ReserveRequest
from tiered.cluster.tenants import Tenants
from tiered.tenancy.policy import TenantPolicy
from tiered.types import BlockHash, NodeId, NodeStats, SecondUse, TenantId, TenantStats


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"field", "message"}
    return answer.status_code, body["error"]["field"], body["error"]["message"]


def names(api: TestClient) -> list[str]:
    return [tenant["policy"]["tenant"] for tenant in api.get("/v1/tenants").json()["tenants"]]


def test_a_created_tenant_is_in_the_next_answer(api: TestClient) -> None:
    answer = api.post("/v1/tenants", json={"tenant": "acme", "redis_limit_bytes": 1000})
    assert answer.status_code == 201
    assert answer.headers["location"] == "/v1/tenants/acme"
    assert answer.json() == {
        "policy": {
            "tenant": "acme",
            "hot_reserved_bytes": 0,
            "hot_limit_bytes": None,
            "hot_reserved_blocks": 0,
            "hot_limit_blocks": None,
            "hot_total_reserved_bytes": 0,
            "hot_total_limit_bytes": None,
            "redis_reserved_bytes": 0,
            "redis_limit_bytes": 1000,
            "redis_ttl_s": None,
            "weight": 1.0,
            "over_quota": "evict_own",
            "sharing": "private",
            "redis_codec": "none",
            "copies": 1,
        },
        "named": True,
        "hot": {"used_bytes": 0, "blocks": 0},
        "redis": {"used_bytes": 0, "pending_bytes": 0, "blocks": 0},
        "tokens": {"asked": 0, "hot": 0, "peer": 0, "redis": 0, "missed": 0},
        "hot_reserved_in_force_bytes": 0,
        "hot_lent_bytes": None,
        "redis_limit_in_force_bytes": 1000,
        "hot_borrowed_bytes": 0,
        "hot_idle_reserved_bytes": 0,
        "pressure": {"evicted_blocks": 0, "suffered_blocks": 0, "caused_blocks": 0, "refused_blocks": 0},
        "seconds": None,
    }
    assert names(api) == ["acme", "default"]
    assert api.get("/v1/tenants/acme").json() == answer.json()


def test_a_tenant_with_two_copies_is_shown_what_they_cost(api: TestClient, parts: Parts) -> None:
    assert api.post("/v1/tenants", json={"tenant": "acme", "copies": 2}).status_code == 201
    hashes = [BlockHash(bytes([n]) * 32) for n in range(5)]
    parts.ledger.reserve([ReserveRequest(h, TenantId("acme"), 100, 0) for h in hashes], ttl_s=30)
    for h in hashes:
        parts.client.set(parts.keys.block(h), b"x" * 100)
    parts.ledger.commit([(h, TenantId("acme"), 100) for h in hashes])
    for name, use in (("n1", SecondUse(2, 200, 1)), ("n2", SecondUse(1, 100, 0))):
        epoch = parts.membership.join(node_info(name), lease_ttl_s=30)
        stats = NodeStats(tenants={"acme": TenantStats(seconds=use)})
        parts.membership.renew(NodeId(name), epoch, stats, lease_ttl_s=30)
    parts.keeper.refresh()
    seconds = {"second_blocks": 3, "second_bytes": 300, "redis_only_blocks": 2, "single_blocks": 1}
    assert api.get("/v1/tenants/acme").json()["seconds"] == seconds
    [row] = [row for row in api.get("/v1/usage").json()["usage"] if row["tier"] == "redis"]
    assert (row["blocks"], row["second_blocks"], row["bytes"], row["second_bytes"]) == (5, 3, 500, 300)
    assert api.patch("/v1/tenants/acme", json={"copies": 1}).json()["seconds"] is None


@pytest.mark.parametrize("copies", [0, 3, -1, 1.5, "2", None, True])
def test_copies_are_one_or_two(api: TestClient, copies: object) -> None:
    status, field, message = error_of(api.post("/v1/tenants", json={"tenant": "acme", "copies": copies}))
    assert (status, field) == (422, "copies")
    assert "1 or 2" in message


def test_creating_a_tenant_twice_is_a_conflict(api: TestClient) -> None:
    api.post("/v1/tenants", json={"tenant": "acme", "weight": 2})
    status, field, message = error_of(api.post("/v1/tenants", json={"tenant": "acme", "weight": 9}))
    assert (status, field) == (409, "tenant")
    assert "PUT or PATCH" in message
    assert api.get("/v1/tenants/acme").json()["policy"]["weight"] == 2


def test_put_resets_what_it_leaves_out_and_patch_keeps_it(api: TestClient) -> None:
    api.post("/v1/tenants", json={"tenant": "acme", "weight": 3, "redis_limit_bytes": 50})
    patched = api.patch("/v1/tenants/acme", json={"redis_limit_bytes": 60}).json()["policy"]
    assert (patched["weight"], patched["redis_limit_bytes"]) == (3.0, 60)
    lifted = api.patch("/v1/tenants/acme", json={"redis_limit_bytes": None}).json()["policy"]
    assert (lifted["weight"], lifted["redis_limit_bytes"]) == (3.0, None)
    put = api.put("/v1/tenants/acme", json={"tenant": "acme", "over_quota": "refuse"}).json()["policy"]
    assert (put["weight"], put["over_quota"]) == (1.0, "refuse")
    assert api.get("/v1/tenants/acme").json()["policy"] == put


def test_a_deleted_tenant_is_gone_from_the_next_answer(api: TestClient) -> None:
    api.post("/v1/tenants", json={"tenant": "acme"})
    answer = api.delete("/v1/tenants/acme")
    assert (answer.status_code, answer.content) == (204, b"")
    assert names(api) == ["default"]
    assert error_of(api.get("/v1/tenants/acme"))[:2] == (404, "tenant")


def test_the_default_tenant_can_be_changed_but_not_deleted(api: TestClient) -> None:
    answer = api.patch("/v1/tenants/default", json={"redis_limit_bytes": 77})
    assert answer.status_code == 200
    status, field, message = error_of(api.delete("/v1/tenants/default"))
    assert (status, field) == (409, "tenant")
    assert "change it" in message
    assert error_of(api.post("/v1/tenants", json={"tenant": "default"}))[0] == 409
    assert api.get("/v1/tenants/default").json()["policy"]["redis_limit_bytes"] == 77


def test_a_tenant_that_was_seen_is_shown_under_the_defaults_bounds(api: TestClient, parts: Parts) -> None:
    api.patch("/v1/tenants/default", json={"redis_limit_bytes": 500})
    request = ReserveRequest(BlockHash(bytes(32)), TenantId("guest"), size_bytes=100, depth=0)
    assert parts.ledger.reserve([request], ttl_s=30.0)[0].reserved
    parts.keeper.refresh()
    guest = api.get("/v1/tenants/guest").json()
    assert not guest["named"]
    assert guest["policy"]["redis_limit_bytes"] == 500
    assert guest["redis"]["pending_bytes"] == 100
    assert error_of(api.patch("/v1/tenants/guest", json={"weight": 2}))[:2] == (404, "tenant")


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_an_unknown_tenant_is_not_found(api: TestClient, method: str) -> None:
    body = {"json": {"weight": 2}} if method in ("PUT", "PATCH") else {}
    status, field, message = error_of(api.request(method, "/v1/tenants/nobody", **body))
    assert (status, field) == (404, "tenant")
    assert "'nobody'" in message


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "tenant", "required"),
        ({"tenant": 7}, "tenant", "string"),
        ({"tenant": "../etc"}, "tenant", "starts with a letter or digit"),
        ({"tenant": "a" * 65}, "tenant", "1 to 64"),
        ({"tenant": "a", "redis_limit_bytes": "lots"}, "redis_limit_bytes", "integer"),
        ({"tenant": "a", "redis_limit_bytes": 1.5}, "redis_limit_bytes", "integer"),
        ({"tenant": "a", "redis_limit_bytes": -1}, "redis_limit_bytes", "greater than or equal to 0"),
        ({"tenant": "a", "hot_reserved_bytes": None}, "hot_reserved_bytes", "integer"),
        ({"tenant": "a", "hot_limit_blocks": -1}, "hot_limit_blocks", "greater"),
        ({"tenant": "a", "sharing": "group:"}, "sharing", "sharing is private, public, or group:"),
        ({"tenant": "a", "redis_codec": "zip"}, "redis_codec", "'none', 'lossless', 'fp8' or 'int8'"),
        (
            {"tenant": "a", "redis_codec": "fp8", "sharing": "public"},
            "redis_codec",
            "with sharing public others read",
        ),
        ({"tenant": "a", "hot_limit_bytes": (1 << 60) + 1}, "hot_limit_bytes", "less than or equal to"),
        ({"tenant": "a", "weight": 0}, "weight", "greater than 0"),
        ({"tenant": "a", "weight": "heavy"}, "weight", "number"),
        ({"tenant": "a", "over_quota": "shrug"}, "over_quota", "evict_own"),
        ({"tenant": "a", "limit": 5}, "limit", "not permitted"),
        (
            {"tenant": "a", "redis_reserved_bytes": 10, "redis_limit_bytes": 9},
            "redis_reserved_bytes",
            "redis_reserved_bytes (10) is above redis_limit_bytes (9)",
        ),
        ([1, 2], "body", "dictionary"),
    ],
)
def test_a_bad_policy_is_refused_naming_the_field(api: TestClient, body: Any, field: str, words: str) -> None:
    status, named, message = error_of(api.post("/v1/tenants", json=body))
    assert (status, named) == (422, field)
    assert words in message
    assert names(api) == ["default"]


def test_a_patch_may_not_leave_reserved_above_the_limit(api: TestClient) -> None:
    api.post("/v1/tenants", json={"tenant": "acme", "hot_reserved_bytes": 10, "hot_limit_bytes": 20})
    status, field, message = error_of(api.patch("/v1/tenants/acme", json={"hot_limit_bytes": 5}))
    assert (status, field) == (422, "hot_reserved_bytes")
    assert "(10) is above hot_limit_bytes (5)" in message
    assert api.get("/v1/tenants/acme").json()["policy"]["hot_limit_bytes"] == 20


def test_a_body_may_not_name_another_tenant_than_the_path(api: TestClient) -> None:
    api.post("/v1/tenants", json={"tenant": "acme"})
    assert error_of(api.put("/v1/tenants/acme", json={"tenant": "globex"}))[:2] == (422, "tenant")


def test_reservations_beyond_the_tiers_capacity_are_refused_with_the_numbers(api: TestClient, parts: Parts) -> None:
    parts.tenants.set_capacity(1000)
    assert api.post("/v1/tenants", json={"tenant": "a", "redis_reserved_bytes": 600}).status_code == 201
    status, field, message = error_of(api.post("/v1/tenants", json={"tenant": "b", "redis_reserved_bytes": 401}))
    assert (status, field) == (422, "redis_reserved_bytes")
    assert "1001" in message
    assert "1000" in message
    assert api.post("/v1/tenants", json={"tenant": "b", "redis_reserved_bytes": 400}).status_code == 201
    assert error_of(api.patch("/v1/tenants/a", json={"redis_reserved_bytes": 601}))[0] == 422
    assert api.patch("/v1/tenants/a", json={"redis_reserved_bytes": 500}).status_code == 200


Change = Callable[[Tenants], object]


def meanwhile(monkeypatch: pytest.MonkeyPatch, parts: Parts, *changes: Change) -> None:
    """Between what this replica reads for a decision and what it writes, another makes the next of the changes."""
    other, left, readable = Tenants(parts.client, parts.keys), list(changes), parts.tenants.readable

    def read_and_be_overtaken() -> tuple[dict[TenantId, TenantPolicy], dict[TenantId, str]]:
        found = readable()
        if left:
            assert left.pop(0)(other)
        return found

    monkeypatch.setattr(parts.tenants, "readable", read_and_be_overtaken)


def reserve(tenant: str, redis_reserved_bytes: int) -> Change:
    return lambda tenants: tenants.create(TenantPolicy(tenant=tenant, redis_reserved_bytes=redis_reserved_bytes))


def test_two_replicas_together_do_not_promise_more_than_there_is(
    api: TestClient, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.tenants.set_capacity(1000)
    meanwhile(monkeypatch, parts, reserve("a", 600))
    status, field, message = error_of(api.post("/v1/tenants", json={"tenant": "b", "redis_reserved_bytes": 600}))
    assert (status, field) == (422, "redis_reserved_bytes")
    assert "1200" in message
    assert set(parts.tenants.policies()) == {"default", "a"}


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_nor_do_two_changes(api: TestClient, parts: Parts, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    parts.tenants.set_capacity(1000)
    api.post("/v1/tenants", json={"tenant": "b"})
    meanwhile(monkeypatch, parts, reserve("a", 600))
    assert error_of(api.request(method, "/v1/tenants/b", json={"redis_reserved_bytes": 600}))[0] == 422
    assert parts.tenants.policies()[TenantId("b")].redis_reserved_bytes == 0


def test_a_patch_keeps_what_another_replica_changed_meanwhile(
    api: TestClient, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.post("/v1/tenants", json={"tenant": "acme"})
    meanwhile(monkeypatch, parts, lambda tenants: tenants.replace(TenantPolicy(tenant="acme", weight=7)))
    policy = api.patch("/v1/tenants/acme", json={"redis_limit_bytes": 60}).json()["policy"]
    assert (policy["weight"], policy["redis_limit_bytes"]) == (7.0, 60)


def test_a_change_that_others_overtake_again_and_again_is_given_up(
    api: TestClient, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [reserve(f"t{i}", 0) for i in range(CHANGE_ATTEMPTS)]
    meanwhile(monkeypatch, parts, *changes[1:])
    assert api.post("/v1/tenants", json={"tenant": "a"}).status_code == 201
    meanwhile(monkeypatch, parts, *changes[:1], *(reserve(f"u{i}", 0) for i in range(CHANGE_ATTEMPTS)))
    status, field, message = error_of(api.post("/v1/tenants", json={"tenant": "b"}))
    assert (status, field) == (503, "")
    assert "nothing was changed" in message
    assert TenantId("b") not in parts.tenants.policies()


def test_a_policy_that_cannot_be_read_can_be_replaced_and_taken_away(api: TestClient, parts: Parts) -> None:
    for method, body, expected in (
        ("POST", {"tenant": "acme"}, 409),
        ("PATCH", {"weight": 2}, 409),
        ("PUT", {"weight": 2}, 200),
        ("DELETE", None, 204),
    ):
        parts.client.hset(parts.keys.tenants(), "acme", '{"colour": 1}')
        answer = api.request(method, "/v1/tenants" if method == "POST" else "/v1/tenants/acme", json=body)
        assert answer.status_code == expected, method
        if method == "PATCH":
            _, field, message = error_of(answer)
            assert field == "tenant"
            assert "the policy of tenant 'acme' cannot be read: " in message
            assert "colour" in message or "tenant" in message
    assert parts.client.hexists(parts.keys.tenants(), "acme") is False


def test_a_hot_reservation_must_fit_the_smallest_node(api: TestClient, parts: Parts) -> None:
    parts.membership.join(node_info("big", capacity_bytes=1000), lease_ttl_s=60.0)
    parts.membership.join(node_info("small", capacity_bytes=100), lease_ttl_s=60.0)
    parts.keeper.refresh()
    assert error_of(api.post("/v1/tenants", json={"tenant": "a", "hot_reserved_bytes": 101}))[:2] == (
        422,
        "hot_reserved_bytes",
    )
    assert api.post("/v1/tenants", json={"tenant": "a", "hot_reserved_bytes": 100}).status_code == 201


def test_a_hot_reservation_in_blocks_counts_with_those_in_bytes(api: TestClient, parts: Parts) -> None:
    stats = NodeStats(pool_blocks=10, block_bytes=100)
    epoch = parts.membership.join(node_info("n", capacity_bytes=1000), lease_ttl_s=60.0)
    parts.membership.renew(NodeId("n"), epoch, stats, lease_ttl_s=60.0)
    parts.keeper.refresh()
    assert api.post("/v1/tenants", json={"tenant": "a", "hot_reserved_blocks": 6}).status_code == 201
    status, field, message = error_of(api.post("/v1/tenants", json={"tenant": "b", "hot_reserved_blocks": 5}))
    assert (status, field) == (422, "hot_reserved_blocks")
    assert "1100 bytes would be reserved" in message
    assert api.post("/v1/tenants", json={"tenant": "b", "hot_reserved_bytes": 400}).status_code == 201


def test_clearing_a_tenant_lets_go_of_its_blocks_in_redis(api: TestClient, parts: Parts) -> None:
    blocks = [BlockHash(bytes([i]) * 32) for i in range(3)]
    acme = TenantId("acme")
    assert all(a.reserved for a in parts.ledger.reserve([ReserveRequest(b, acme, 10, 0) for b in blocks], ttl_s=30.0))
    for block in blocks:
        parts.client.set(parts.keys.block(block), b"x" * 10)
    assert all(parts.ledger.commit([(block, acme, 10) for block in blocks]))
    assert api.delete("/v1/tenants/acme/blocks").json() == {"blocks": 3}
    assert parts.ledger.usage() == {}


def test_a_body_that_is_not_json_is_refused(api: TestClient) -> None:
    answer = api.post("/v1/tenants", content=b"{tenant", headers={"content-type": "application/json"})
    assert error_of(answer)[:2] == (422, "body")
