"""``/v1/capacity``: from what a worker publishes to what a caller may read of it."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.coordinator.builders import node_info, node_stats, tokens
from tests.unit.coordinator.conftest import Parts
from tests.unit.curve.builders import ACME, look
from tiered.curve.sampler import Sampler
from tiered.tenancy.policy import TenantPolicy
from tiered.types import NodeId, TenantCurve, TenantStats

ADMIN = "admin-s3cret"


def curve(n_blocks: int) -> TenantCurve:
    sampler = Sampler(16)
    for _ in range(5):
        for first in range(0, n_blocks, 50):
            look(sampler, range(first, first + 50))
    return sampler.curves(now=600.0)[ACME]


@pytest.fixture
def http(parts: Parts) -> TestClient:
    """acme and globex are drawn, quiet has never looked anything up."""
    parts.tenants.create(TenantPolicy(tenant="quiet"))
    parts.tenants.create(TenantPolicy(tenant="acme", redis_limit_bytes=1 << 30))
    epoch = parts.membership.join(node_info("n1", capacity_bytes=1 << 30), lease_ttl_s=600.0)
    stats = node_stats(
        acme=TenantStats(tokens=tokens(hot=5), hot_blocks=900, hot_bytes=900 * 1_024, curve=curve(2_000)),
        globex=TenantStats(tokens=tokens(missed=5), curve=curve(500)),
    )
    parts.membership.renew(NodeId("n1"), epoch, stats, lease_ttl_s=600.0)
    parts.keeper.refresh()
    return parts.http(admin_token=ADMIN, bearer=ADMIN)


def tenants_of(answer: Any) -> list[str]:
    return [each["tenant"] for each in answer.json()["tenants"]]


def test_a_curve_that_a_worker_publishes_is_read_with_what_more_would_buy(http: TestClient) -> None:
    answer = http.get("/v1/capacity", params={"tenant": "acme", "more_bytes": "2MiB", "tier": "hot"})
    (acme,) = answer.json()["tenants"]
    assert (acme["nodes"], acme["since_s"]) == (1, 600.0)
    assert acme["hot"] == {"used_bytes": 900 * 1_024, "blocks": 900, "limit_bytes": None}
    assert acme["redis"] == {"used_bytes": 0, "blocks": 0, "limit_bytes": 1 << 30}
    assert acme["predicted"]["hit_ratio"] == pytest.approx(0.0, abs=0.02)
    assert acme["curve"][-1]["hit_ratio"] == pytest.approx(0.8, abs=0.02)
    asked = acme["what_if"][-1]
    assert (asked["tier"], asked["more_bytes"]) == ("hot", 2 << 20)
    assert asked["points"] == pytest.approx(80, abs=2)
    assert asked["prefill_s_per_hour"] is None
    assert [each["more_bytes"] for each in acme["what_if"][:-1]] == [92_160, 230_400, 921_600]


def test_all_tenants_with_a_curve_are_listed_and_one_without_says_so_when_asked(http: TestClient) -> None:
    assert tenants_of(http.get("/v1/capacity")) == ["acme", "globex"]
    (quiet,) = http.get("/v1/capacity", params={"tenant": "quiet"}).json()["tenants"]
    assert (quiet["nodes"], quiet["curve"], quiet["predicted"]) == (0, [], None)
    assert http.get("/v1/capacity", params={"tenant": "nobody"}).status_code == 404


def test_beyond_the_limit_the_busiest_are_shown_and_the_others_counted(http: TestClient) -> None:
    answer = http.get("/v1/capacity", params={"limit": 1})
    assert (tenants_of(answer), answer.json()["left_out"]) == (["acme"], 1)
    assert http.get("/v1/capacity").json()["left_out"] == 0
    assert http.get("/v1/capacity", params={"limit": 0}).json()["error"]["field"] == "limit"


def test_a_tenants_token_sees_its_own_curve_and_no_other(http: TestClient, parts: Parts) -> None:
    made = http.post("/v1/tenants/acme/tokens", json={}).json()["token"]
    own = parts.http(admin_token=ADMIN, bearer=made)
    assert tenants_of(own.get("/v1/capacity")) == ["acme"]
    seen, all_seen = own.get("/v1/capacity?tenant=acme").json(), http.get("/v1/capacity?tenant=acme").json()
    assert seen["tenants"] == all_seen["tenants"]
    other = own.get("/v1/capacity?tenant=globex")
    assert other.status_code == 404
    assert other.json() == own.get("/v1/capacity?tenant=globex").json()
    assert parts.http(admin_token=ADMIN, read_token="r").get("/v1/capacity").status_code == 401


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"more_bytes": "much"}, "more_bytes"),
        ({"more_bytes": "0"}, "more_bytes"),
        ({"more_bytes": "2048TiB"}, "more_bytes"),
        ({"more_bytes": "-1e300"}, "more_bytes"),
        ({"more_bytes": "nan"}, "more_bytes"),
        ({"tier": "redis"}, "more_bytes"),
        ({"tier": "disk", "more_bytes": "1GiB"}, "tier"),
        ({"tenant": "no/name"}, "tenant"),
    ],
)
def test_a_bad_question_names_its_field(http: TestClient, params: dict[str, str], field: str) -> None:
    answer = http.get("/v1/capacity", params=params)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == field


def test_less_than_there_is_takes_what_there_is(http: TestClient) -> None:
    asked = http.get("/v1/capacity?tenant=acme&more_bytes=-1TiB&tier=hot").json()["tenants"][0]["what_if"][-1]
    assert (asked["more_bytes"], asked["bytes"], asked["hit_ratio"]) == (-900 * 1_024, 0, 0.0)


def test_before_anything_was_read_nothing_is_drawn(parts: Parts) -> None:
    assert parts.http().get("/v1/capacity").json()["tenants"] == []


def test_a_tenant_that_was_deleted_is_drawn_as_long_as_its_lookups_are_remembered(
    http: TestClient, parts: Parts
) -> None:
    assert http.delete("/v1/tenants/acme").status_code == 204
    assert "acme" in tenants_of(http.get("/v1/capacity"))
    epoch = parts.membership.join(node_info("n1"), lease_ttl_s=600.0)
    parts.membership.renew(NodeId("n1"), epoch, node_stats(), lease_ttl_s=600.0)
    parts.keeper.refresh()
    assert tenants_of(http.get("/v1/capacity")) == []
