"""The rest of the API: who may change things, nodes, usage, health and metrics."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from fastapi.testclient import TestClient

from coordinator.view.keeper import ViewKeeper
from coordinator.view.snapshot import Readings
from tests.unit.coordinator.builders import node_info, node_stats, tokens
from tests.unit.coordinator.conftest import Parts
from tests.unit.coordinator.test_server_tenants import error_of
from tiered.clock import ManualClock
from tiered.cluster.ledger import ReserveRequest
from tiered.errors import TierTimeout
from tiered.types import BlockHash, NodeId, TenantId, TenantStats


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic s3cret", "s3cret", "Bearer", "Bearer s3cret2"])
def test_a_change_without_the_token_is_refused(parts: Parts, header: str | None) -> None:
    http = parts.http(admin_token="s3cret")
    headers = {} if header is None else {"Authorization": header}
    for method, path in (("POST", ""), ("PUT", "/default"), ("PATCH", "/default"), ("DELETE", "/default")):
        body = {"json": {"tenant": "default"}} if method != "DELETE" else {}
        answer = http.request(method, f"/v1/tenants{path}", headers=headers, **body)
        assert error_of(answer)[:2] == (401, "authorization")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert parts.tenants.revision() == 0


def test_a_change_with_the_token_is_accepted_from_anywhere(parts: Parts) -> None:
    http = parts.http(admin_token="s3cret", base_url="http://tiered.example")
    answer = http.post("/v1/tenants", json={"tenant": "acme"}, headers={"Authorization": "Bearer s3cret"})
    assert answer.status_code == 201


def test_reading_needs_no_token_where_none_is_set(parts: Parts) -> None:
    assert parts.http().get("/v1/tenants").status_code == 200
    assert parts.http(admin_token="s3cret").get("/v1/tenants").status_code == 401


@pytest.mark.parametrize(
    ("base_url", "headers", "field"),
    [
        ("http://rebound.example:8080", {}, "host"),
        ("http://127.0.0.1:8080", {"Origin": "http://evil.example"}, "origin"),
        ("http://127.0.0.1:8080", {"Origin": "null"}, "origin"),
    ],
)
def test_without_a_token_a_page_from_elsewhere_changes_and_learns_nothing(
    parts: Parts, base_url: str, headers: dict[str, str], field: str
) -> None:
    answer = parts.http(base_url=base_url).post("/v1/tenants", json={"tenant": "acme"}, headers=headers)
    assert error_of(answer)[:2] == (403, field)
    assert parts.tenants.get(TenantId("acme")) is None
    for path in ("/v1/tenants", "/metrics", "/"):
        assert error_of(parts.http(base_url=base_url).get(path, headers=headers))[:2] == (403, field)


@pytest.mark.parametrize("base_url", ["http://localhost:8080", "http://[::1]:8080", "http://127.0.0.1:8080"])
def test_without_a_token_this_machine_may_change_things(parts: Parts, base_url: str) -> None:
    assert parts.http(base_url=base_url).post("/v1/tenants", json={"tenant": "acme"}).status_code == 201


def test_a_node_is_listed_with_its_address_and_pool(api: TestClient, parts: Parts) -> None:
    epoch = parts.membership.join(node_info("n1", capacity_bytes=4096), lease_ttl_s=60.0)
    stats = node_stats(acme=TenantStats(tokens=tokens(hot=5, missed=1), hot_blocks=2, hot_bytes=2048))
    parts.membership.renew(NodeId("n1"), epoch, stats, lease_ttl_s=60.0)
    parts.keeper.refresh()
    (node,) = api.get("/v1/nodes").json()["nodes"]
    assert 0 < node.pop("lease_left_s") <= 60.0
    assert node == {
        "node": "n1",
        "epoch": epoch,
        "alive": True,
        "peer": "10.0.0.7:7400",
        "metrics_port": 9400,
        "socket_path": "/run/n1.sock",
        "capacity_bytes": 4096,
        "pool_blocks": 100,
        "free_blocks": 40,
        "block_bytes": 1024,
        "engines": 1,
        "layout": "16x2",
        "scopes": [],
        "pid": 0,
        "hot_bytes": 2048,
        "version": "0.1.0",
        "drain": {"state": "none", "left_blocks": 0, "moved_blocks": 0, "stuck_blocks": 0},
        "rates": {
            "peers": {"latency_s": 0.0, "bytes_per_s": 0.0},
            "redis": {"latency_s": 0.0, "bytes_per_s": 0.0},
            "prefill_tokens_per_s": 0.0,
            "waiting_s": 0.0,
        },
        "traffic": {
            "peer_received_bytes": 0,
            "peer_sent_bytes": 0,
            "redis_read_bytes": 0,
            "redis_written_bytes": 0,
            "breaker_open": 0,
        },
    }


def fill(parts: Parts) -> None:
    """One node with one tenant, which also has a block in Redis being written."""
    epoch = parts.membership.join(node_info("n1", capacity_bytes=4096), lease_ttl_s=60.0)
    stats = node_stats(acme=TenantStats(tokens=tokens(hot=5, missed=1), hot_blocks=2, hot_bytes=2048))
    parts.membership.renew(NodeId("n1"), epoch, stats, lease_ttl_s=60.0)
    request = ReserveRequest(BlockHash(bytes(32)), TenantId("acme"), size_bytes=10, depth=0)
    assert parts.ledger.reserve([request], ttl_s=30.0)[0].reserved
    parts.client.set(parts.keys.block(request.block_hash), b"x" * 10)
    assert parts.ledger.commit([(request.block_hash, request.tenant, request.size_bytes)]) == [True]
    parts.keeper.refresh()


def test_usage_has_one_row_for_each_place(api: TestClient, parts: Parts) -> None:
    fill(parts)
    hot, redis = api.get("/v1/usage").json()["usage"]
    assert hot.items() >= {"tenant": "acme", "tier": "hot", "node": "n1", "bytes": 2048, "blocks": 2}.items()
    assert redis.items() >= {"tenant": "acme", "tier": "redis", "node": None, "bytes": 10, "blocks": 1}.items()
    assert (hot["limit_bytes"], hot["reserved_bytes"]) == (redis["limit_bytes"], redis["reserved_bytes"]) == (None, 0)


def test_usage_of_one_tenant_or_one_node_is_a_part_of_all(api: TestClient, parts: Parts) -> None:
    fill(parts)
    hot, redis = api.get("/v1/usage").json()["usage"]
    assert api.get("/v1/usage", params={"node": "n1"}).json()["usage"] == [hot]
    assert api.get("/v1/usage", params={"tenant": "acme"}).json()["usage"] == [hot, redis]
    assert api.get("/v1/usage", params={"tenant": "default", "node": "n1"}).json()["usage"] == []
    assert error_of(api.get("/v1/usage", params={"tenant": "acm"}))[:2] == (404, "tenant")
    assert error_of(api.get("/v1/usage", params={"node": "n2"}))[:2] == (404, "node")


def test_stats_sum_the_cluster(api: TestClient, parts: Parts) -> None:
    fill(parts)
    stats = api.get("/v1/stats").json()
    assert stats.pop("age_s") >= 0
    nothing = {"asked": 0, "hot": 0, "peer": 0, "redis": 0, "missed": 0}
    found = {"asked": 6, "hot": 5, "peer": 0, "redis": 0, "missed": 1}
    assert stats == {
        "tokens": found,
        "by_tenant": {"acme": found, "default": nothing},
        "tiers": {
            "hot": {"bytes": 2048, "blocks": 2, "capacity_bytes": 4096},
            "redis": {"bytes": 10, "pending_bytes": 0, "blocks": 1, "capacity_bytes": None},
        },
        "nodes": {"alive": 1, "known": 1},
        "saved_prefill_s": 0.0,
        "stale": False,
        "mirror": None,
        "is_leader": False,
        "leader": None,
        "leader_token": 0,
        "redis_conserved": None,
    }


def test_metrics_are_served_from_the_view(api: TestClient, parts: Parts) -> None:
    fill(parts)
    answer = api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'tiered_tenant_tokens_total{outcome="hot",tenant="acme"} 5.0' in answer.text


def test_ready_only_after_redis_was_read(parts: Parts) -> None:
    http = parts.http()
    assert error_of(http.get("/readyz")) == (503, "redis", "Redis has not been read yet")
    assert http.get("/healthz").status_code == 200
    parts.keeper.refresh()
    assert http.get("/readyz").status_code == 200


def test_a_change_while_redis_is_away_is_a_503_and_the_last_view_stays(api: TestClient, parts: Parts) -> None:
    api.post("/v1/tenants", json={"tenant": "acme"})
    parts.client.connection_pool.disconnect()
    parts.client.connection_pool.connection_kwargs["path"] = "/nowhere.sock"
    parts.client.connection_pool.reset()
    for method, path in (("POST", ""), ("PUT", "/acme"), ("PATCH", "/acme"), ("DELETE", "/acme")):
        body = {"json": {"tenant": "acme"}} if method != "DELETE" else {}
        status, _, message = error_of(api.request(method, f"/v1/tenants{path}", **body))
        assert status == 503
        assert "may or may not have been made" in message
    status, _, message = error_of(api.get("/v1/tenants/acme/tokens"))
    assert status == 503
    assert "Redis did not answer; try again" in message
    assert "change" not in message
    assert parts.keeper.refresh().stale
    assert "nowhere" in parts.keeper.view.reason
    assert api.get("/v1/tenants/acme").json()["named"]
    assert api.get("/v1/stats").json()["stale"]
    status, _, message = error_of(api.get("/readyz"))
    assert status == 503  # without where Redis is: no token was asked for
    assert message == "Redis does not answer, or refuses to; the coordinator's log says why"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TierTimeout("10.0.0.7:6379"), "Redis does not answer, or refuses to"),
        (msgspec.DecodeError("10.0.0.7:6379"), "Redis answers, and something that it holds cannot be read"),
    ],
)
def test_ready_says_in_its_own_words_what_is_wrong(parts: Parts, error: Exception, said: str) -> None:
    def read() -> Readings:
        raise error

    keeper = ViewKeeper(read, ManualClock())
    keeper.refresh()
    http = replace(parts, keeper=keeper).http()
    assert error_of(http.get("/readyz")) == (503, "redis", f"{said}; the coordinator's log says why")


def test_a_path_or_method_that_does_not_exist_has_the_same_shape_of_error(api: TestClient) -> None:
    assert error_of(api.get("/v1/nothing"))[0] == 404
    assert error_of(api.delete("/v1/nodes"))[0] == 405
