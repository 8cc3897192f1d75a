"""Clearing by the API: exactly one thing, by an admin, Redis at once and the pools by a request that stands."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.conftest import Parts
from tiered.cluster.clears import STANDING_MAX, ClearRequest, Clears
from tiered.cluster.ledger import ReserveRequest
from tiered.types import BlockHash, TenantId

RED = TenantId("red")


def store(parts: Parts, *hashes: bytes) -> None:
    requests = [ReserveRequest(BlockHash(h), RED, 10, depth) for depth, h in enumerate(hashes)]
    parts.ledger.reserve(requests, ttl_s=30.0)
    for h in hashes:
        parts.client.set(parts.keys.block(BlockHash(h)), b"x" * 10)
    parts.ledger.commit([(BlockHash(h), RED, 10) for h in hashes])


def test_a_tenants_blocks_leave_redis_at_once_and_the_pools_are_asked(parts: Parts) -> None:
    store(parts, bytes([1]) * 32, bytes([2]) * 32)
    answer = parts.http().post("/v1/clear", json={"tenant": "red"})
    assert (answer.status_code, answer.json()) == (202, {"redis_blocks": 2})
    assert list(Clears(parts.client, parts.keys).standing().values()) == [ClearRequest("tenant", "red")]


def test_the_tenants_own_path_does_the_same(parts: Parts) -> None:
    store(parts, bytes([1]) * 32)
    assert parts.http().delete("/v1/tenants/red/blocks").json() == {"blocks": 1}
    assert list(Clears(parts.client, parts.keys).standing().values()) == [ClearRequest("tenant", "red")]


def test_a_name_that_nobody_knows_is_not_said_to_be_cleared(parts: Parts) -> None:
    store(parts, bytes([1]) * 32)
    for answer in (
        parts.http().post("/v1/clear", json={"tenant": "rad"}),
        parts.http().delete("/v1/tenants/rad/blocks"),
    ):
        assert (answer.status_code, answer.json()["error"]["field"]) == (404, "tenant")
    assert Clears(parts.client, parts.keys).standing() == {}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "tenant"),
        ({"tenant": "red", "scope": "00" * 32}, "tenant"),
        ({"prefix": "abc"}, "prefix"),
        ({"scope": "zz" * 32}, "scope"),
        ({"tenant": "*"}, "tenant"),
        ({"everything": True}, "everything"),
    ],
)
def test_what_is_not_clear_is_refused_by_name(parts: Parts, body: dict[str, object], field: str) -> None:
    answer = parts.http().post("/v1/clear", json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)
    assert Clears(parts.client, parts.keys).standing() == {}


def test_a_prefix_named_in_capitals_is_the_same_prefix(parts: Parts) -> None:
    store(parts, bytes([0xAB]) * 32)
    answer = parts.http().post("/v1/clear", json={"prefix": "AB" * 32})
    assert answer.json() == {"redis_blocks": 1}


def test_so_many_requests_stand_and_no_more(parts: Parts) -> None:
    clears = Clears(parts.client, parts.keys)
    for _ in range(STANDING_MAX):
        assert clears.ask(ClearRequest("tenant", "red")) is not None
    store(parts, bytes([1]) * 32)
    answer = parts.http().post("/v1/clear", json={"tenant": "red"})
    assert answer.status_code == 429
