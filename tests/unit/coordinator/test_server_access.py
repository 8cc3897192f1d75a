"""Who is let in where: the settings' tokens, tenants' tokens, browsers' sessions, and nobody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.routing import BaseRoute

from coordinator.server.auth import require_admin
from coordinator.server.gate import OPEN
from coordinator.server.session import COOKIE
from tests.unit.coordinator.builders import node_info, node_stats, tokens
from tests.unit.coordinator.conftest import Parts
from tests.unit.coordinator.test_server_tenants import error_of
from tiered.clock import ManualClock
from tiered.cluster.ledger import ReserveRequest
from tiered.tenancy.policy import TenantPolicy
from tiered.types import BlockHash, NodeId, TenantId, TenantStats

ADMIN, READER = "admin-s3cret", "read-s3cret"

NO_API = ("/docs/", "/logout")
READ_ONLY_POSTS = {"/v1/route", "/v1/prefixes"}
"""They change nothing: what they are asked is too long for an address."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One coordinator with both tokens set, as each kind of caller reaches it."""

    parts: Parts

    def as_(self, token: str, **options: str) -> TestClient:
        return self.parts.http(admin_token=ADMIN, read_token=READER, bearer=token, **options)  # type: ignore[arg-type]

    def token(self, tenant: str, **fields: object) -> dict[str, str]:
        answer = self.as_(ADMIN).post(f"/v1/tenants/{tenant}/tokens", json=fields)
        assert answer.status_code == 201, answer.text
        made: dict[str, str] = answer.json()
        return made


@pytest.fixture
def replica(parts: Parts) -> Replica:
    """Two tenants whose every number is its own: acme's hold a 7, globex' a 9."""
    for tenant, n in (("acme", 7), ("globex", 9)):
        parts.tenants.create(TenantPolicy(tenant=tenant, redis_limit_bytes=n * 1_000_003, sharing=f"group:{tenant}"))
        request = ReserveRequest(BlockHash(bytes([n]) * 32), TenantId(tenant), size_bytes=n * 1_000, depth=0)
        parts.ledger.reserve([request], ttl_s=30.0)
        parts.client.set(parts.keys.block(request.block_hash), b"x" * n * 1_000)
        parts.ledger.commit([(request.block_hash, request.tenant, request.size_bytes)])
    epoch = parts.membership.join(node_info("n1", capacity_bytes=1 << 20), lease_ttl_s=600.0)
    stats = node_stats(
        acme=TenantStats(tokens=tokens(hot=71, missed=72), hot_blocks=7, hot_bytes=7_168),
        globex=TenantStats(tokens=tokens(hot=91_919, missed=92_929), hot_blocks=19, hot_bytes=19_456),
    )
    parts.membership.renew(NodeId("n1"), epoch, stats, lease_ttl_s=600.0)
    parts.keeper.refresh()
    return Replica(parts)


GLOBEX_NUMBERS = ("91919", "92929", "184848", "19456", "26624", "9000", "16000", "9000027", "globex")
"""Its own, and the sums from which its own could be told by who knows acme's."""


@pytest.mark.parametrize("path", ["/v1/tenants", "/v1/tenants/acme", "/v1/usage", "/v1/stats", "/metrics"])
def test_reading_needs_a_token_where_tokens_are_set(replica: Replica, path: str) -> None:
    answer = replica.as_("").get(path)
    assert error_of(answer)[:2] == (401, "authorization")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert replica.as_(READER).get(path).status_code == 200
    assert replica.as_(ADMIN).get(path).status_code == 200


def test_liveness_and_the_description_of_the_api_are_open(replica: Replica) -> None:
    for path in OPEN:
        assert replica.as_("").get(path).status_code == 200, path
        assert "acme" not in replica.as_("").get(path).text


@pytest.mark.parametrize("path", ["/v1/nothing", "/nothing", "/v1", "//v1/tenants", "/healthz/", "/docs/../v1"])
def test_what_does_not_exist_is_behind_the_gate_as_well(replica: Replica, path: str) -> None:
    assert replica.as_("").get(path).status_code == 401


@pytest.mark.parametrize(
    "header",
    [
        *("Bearer wrong", "Bearer", "Bearer ", "bearer", "Basic " + ADMIN, ADMIN, "", "Bearer " + ADMIN + "x"),
        *("Bearer " + "tiered_" + "x" * 43, "Bearer tiered_" + "x" * 100_000, "Bearer " + ADMIN[:-1], "\x7f"),
    ],
)
def test_a_bad_token_is_nobodys(replica: Replica, header: str) -> None:
    answer = replica.as_("").get("/v1/stats", headers={"Authorization": header})
    assert error_of(answer)[:2] == (401, "authorization")


def test_a_token_that_is_no_ascii_is_nobodys(replica: Replica) -> None:
    answer = replica.as_("").get("/v1/stats", headers={"Authorization": "Bearer \xff\xfe".encode("latin-1")})
    assert error_of(answer)[:2] == (401, "authorization")


def test_a_wrong_token_makes_nobody_an_admin_where_none_is_needed(parts: Parts) -> None:
    """Else a tenant whose token was revoked could do more than before."""
    http = parts.http(bearer="tiered_" + "x" * 43)
    assert error_of(http.get("/v1/tenants"))[:2] == (401, "authorization")
    assert error_of(http.post("/v1/tenants", json={"tenant": "acme"}))[:2] == (401, "authorization")


def test_the_read_token_reads_and_changes_nothing(replica: Replica) -> None:
    http = replica.as_(READER)
    assert {tenant["policy"]["tenant"] for tenant in http.get("/v1/tenants").json()["tenants"]} >= {"acme", "globex"}
    assert error_of(http.patch("/v1/tenants/acme", json={"weight": 2}))[:2] == (403, "authorization")


def test_a_token_made_at_one_replica_works_at_another_at_once(replica: Replica, parts: Parts) -> None:
    other = replica.as_("")
    assert other.get("/v1/stats").status_code == 401
    token = replica.token("acme", label="board")["token"]
    assert other.get("/v1/stats", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_the_list_of_tokens_tells_all_but_the_tokens(replica: Replica) -> None:
    made = replica.token("acme", label="board", expires_s=3600)
    answer = replica.as_(ADMIN).get("/v1/tenants/acme/tokens")
    (listed,) = answer.json()["tokens"]
    assert listed == {key: value for key, value in made.items() if key != "token"}
    assert made["token"] not in answer.text
    assert listed["expires_at"] > listed["created_at"]
    assert replica.as_(ADMIN).get("/v1/tenants/globex/tokens").json() == {"tokens": []}


def test_a_revoked_token_is_refused_here_at_once_and_elsewhere_soon(replica: Replica, parts: Parts) -> None:
    made = replica.token("acme")
    clock = ManualClock()
    here = replica.as_(ADMIN)
    elsewhere = parts.http(admin_token=ADMIN, bearer=made["token"], clock=clock)
    theirs = {"Authorization": f"Bearer {made['token']}"}
    assert here.get("/v1/stats", headers=theirs).status_code == 200
    assert elsewhere.get("/v1/stats").status_code == 200
    assert here.delete(f"/v1/tenants/acme/tokens/{made['id']}").status_code == 204
    assert here.get("/v1/stats", headers=theirs).status_code == 401
    clock.advance(2.0)
    assert elsewhere.get("/v1/stats").status_code == 401
    assert error_of(here.delete(f"/v1/tenants/acme/tokens/{made['id']}"))[:2] == (404, "id")


def test_the_tokens_of_a_deleted_tenant_end_with_it(replica: Replica) -> None:
    """A later tenant of that name is somebody else."""
    token = replica.token("acme")["token"]
    admin = replica.as_(ADMIN)
    assert admin.delete("/v1/tenants/acme").status_code == 204
    assert admin.post("/v1/tenants", json={"tenant": "acme"}).status_code == 201
    assert replica.as_(token).get("/v1/stats").status_code == 401


def test_a_token_is_made_for_no_tenant_that_nobody_knows(replica: Replica) -> None:
    admin = replica.as_(ADMIN)
    assert error_of(admin.post("/v1/tenants/acmee/tokens", json={}))[:2] == (404, "tenant")
    assert error_of(admin.get("/v1/tenants/acmee/tokens"))[:2] == (404, "tenant")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *(({"expires_s": bad}, "expires_s") for bad in (0, -1, 1e12, "soon", True, [])),
        *(({"label": bad}, "label") for bad in ("x" * 101, "a\x00b", "a\nb", 7, None)),
        ({"tenant": "globex"}, "tenant"),
    ],
)
def test_a_bad_request_for_a_token_names_its_field(replica: Replica, body: dict[str, object], field: str) -> None:
    assert error_of(replica.as_(ADMIN).post("/v1/tenants/acme/tokens", json=body))[:2] == (422, field)


def test_a_tenant_sees_itself_alone_in_the_cluster(replica: Replica) -> None:
    http = replica.as_(replica.token("acme")["token"])
    (tenant,) = http.get("/v1/tenants").json()["tenants"]
    assert tenant["policy"]["redis_limit_bytes"] == 7_000_021
    assert http.get("/v1/tenants/acme").json() == tenant
    rows = http.get("/v1/usage").json()["usage"]
    assert [(row["tenant"], row["tier"], row["node"], row["bytes"], row["blocks"]) for row in rows] == [
        ("acme", "hot", "n1", 7168, 7),
        ("acme", "redis", None, 7000, 1),
    ]
    stats = http.get("/v1/stats").json()
    assert stats["by_tenant"] == {"acme": stats["tokens"]}
    assert stats["tokens"]["asked"] == 143
    assert stats["tiers"]["hot"]["bytes"] == 7168
    assert stats["tiers"]["redis"]["bytes"] == 7000
    (node,) = http.get("/v1/nodes").json()["nodes"]
    assert (node["hot_bytes"], node["pool_blocks"], node["free_blocks"]) == (7168, 100, 93)


def test_a_tenant_nobody_has_heard_of_since_sees_its_bounds_and_zeros(replica: Replica, parts: Parts) -> None:
    parts.tenants.create(TenantPolicy(tenant="late"))
    token = replica.token("late")["token"]
    parts.tenants.delete(TenantId("late"))
    parts.keeper.refresh()
    (tenant,) = replica.as_(token).get("/v1/tenants").json()["tenants"]
    assert (tenant["policy"]["tenant"], tenant["named"], tenant["tokens"]["asked"]) == ("late", False, 0)


def test_another_tenant_and_none_at_all_are_answered_alike(replica: Replica) -> None:
    http = replica.as_(replica.token("acme")["token"])
    for path in ("/v1/tenants/{}", "/v1/tenants/{}/tokens"):
        there, nowhere = (http.get(path.format(name)) for name in ("globex", "nobody"))
        assert error_of(there)[:2] == (404, "tenant")
        assert there.text.replace("globex", "nobody") == nowhere.text


def test_a_tenant_token_whose_validity_cannot_be_told_is_a_503(replica: Replica, parts: Parts) -> None:
    token = replica.token("acme")["token"]
    known, unknown = replica.as_(token), replica.as_("tiered_" + "x" * 43)
    assert known.get("/v1/stats").status_code == 200
    parts.client.connection_pool.disconnect()
    parts.client.connection_pool.connection_kwargs["path"] = "/nowhere.sock"
    parts.client.connection_pool.reset()
    assert known.get("/v1/stats").status_code == 200
    status, field, message = error_of(unknown.get("/v1/stats"))
    assert (status, field) == (503, "redis")
    assert "nowhere" not in message, "who is not let in is not told where Redis is"
    assert replica.as_(READER).get("/v1/stats").status_code == 200
    assert replica.as_("nonsense").get("/v1/stats").status_code == 401


# Every route there is, those of other files included.


def routes(replica: Replica) -> Iterator[tuple[str, str, APIRoute]]:
    """(method, path with acme and n1 for its parameters, route)."""
    app = replica.as_("").app
    for route in _flat(app.routes):  # type: ignore[attr-defined]
        if isinstance(route, APIRoute) and route.path not in OPEN and not route.path.startswith(NO_API):
            for method in sorted(route.methods):
                yield method, route.path, route


def _flat(routes: list[BaseRoute]) -> Iterator[BaseRoute]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from _flat(inner.routes)
        else:
            yield route


def test_every_route_is_closed_to_who_has_no_token(replica: Replica) -> None:
    seen = list(routes(replica))
    assert len(seen) >= 15
    http = replica.as_("")
    for method, path, _ in seen:
        assert http.request(method, filled(path)).status_code == 401, (method, path)


def test_every_change_needs_the_admin_token(replica: Replica) -> None:
    tenant = replica.token("acme")["token"]
    for method, path, route in routes(replica):
        if method == "GET" or path in READ_ONLY_POSTS:
            continue
        assert any(needed.call is require_admin for needed in route.dependant.dependencies), (method, path)
        for token in (READER, tenant):
            answer = replica.as_(token).request(method, filled(path), json={})
            assert error_of(answer)[:2] == (403, "authorization"), (method, path)


def test_no_answer_tells_a_tenant_of_another(replica: Replica) -> None:
    """By name or by number, asked for itself, for the other, or for nobody in particular."""
    token = replica.token("acme", label="own")["token"]
    replica.token("globex", label="globex-board")
    http, answered = replica.as_(token), 0
    for method, path, _ in routes(replica):
        if method != "GET":
            continue
        for tenant in ("acme", "globex"):
            answer = http.get(filled(path, tenant=tenant), params={"tenant": tenant})
            assert answer.status_code in (200, 400, 403, 404, 422), (path, answer.text)
            answered += answer.status_code == 200
            told = answer.text.replace("'globex'", "") if answer.is_client_error else answer.text
            leaked = [each for each in GLOBEX_NUMBERS if re.search(rf"(?<![0-9.]){each}(?![0-9])", told)]
            assert not leaked, (path, tenant, answer.text)  # the digits of a moment's fraction are no number
    assert answered >= 5


def filled(path: str, *, tenant: str = "acme") -> str:
    block = (bytes([9]) * 32).hex()
    values = {"{tenant}": tenant, "{node}": "n1", "{id}": "abc123", "{hash}": block, "{block_hash}": block}
    for name, value in values.items():
        path = path.replace(name, value)
    return path


# A browser.


def log_in(http: TestClient, token: str, **headers: str) -> httpx.Response:
    return http.post("/login", data={"token": token}, headers=headers, follow_redirects=False)


def test_a_page_without_a_session_leads_to_the_login(replica: Replica) -> None:
    http = replica.as_("")
    answer = http.get("/", headers={"Accept": "text/html"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    page = http.get("/login")
    assert 'type="password"' in page.text
    assert "http" not in page.text


def test_logging_in_opens_a_session_that_holds_no_token(replica: Replica) -> None:
    http = replica.as_("")
    answer = log_in(http, READER)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert READER not in cookie
    for attribute in ("httponly", "samesite=strict", "path=/"):
        assert attribute in cookie.lower()
    assert "secure" not in cookie.lower()
    assert http.get("/metrics").status_code == 200


def test_over_tls_the_cookie_stays_there(replica: Replica) -> None:
    answer = log_in(replica.as_("", base_url="https://tiered.example"), ADMIN)
    assert "secure" in answer.headers["set-cookie"].lower()


def test_a_session_is_good_at_every_replica_with_the_same_tokens(replica: Replica, parts: Parts) -> None:
    first = replica.as_("")
    log_in(first, ADMIN)
    session = {COOKIE: first.cookies[COOKIE]}
    second, changed = replica.as_(""), parts.http(admin_token="another", read_token=READER)
    second.cookies.update(session)
    changed.cookies.update(session)
    assert second.get("/metrics").status_code == 200
    assert changed.get("/metrics").status_code == 401


def test_a_session_is_no_token_of_the_api(replica: Replica) -> None:
    """A page of another site can make a browser call us with its cookies, never with a header."""
    http = replica.as_("")
    log_in(http, ADMIN)
    assert http.get("/v1/tenants").status_code == 401
    assert http.post("/v1/tenants", json={"tenant": "new"}).status_code == 401


def test_a_tenants_session_ends_when_its_token_is_revoked(replica: Replica) -> None:
    made = replica.token("acme")
    http = replica.as_("")
    log_in(http, made["token"])
    assert http.get("/metrics").status_code == 403  # it is let in, and sees no whole cluster
    http.delete(f"/v1/tenants/acme/tokens/{made['id']}", headers={"Authorization": f"Bearer {ADMIN}"})
    assert http.get("/metrics").status_code == 401


@pytest.mark.parametrize("token", ["", "wrong", "é", "<script>", "tiered_" + "x" * 43])
def test_a_wrong_token_opens_no_session(replica: Replica, token: str) -> None:
    answer = log_in(replica.as_(""), token)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "<script>" not in answer.text


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b"token", b"token=%ff%00", b"&" * 1000, b"a=1&" * 1000, b"{}"])
def test_a_form_that_is_none_opens_no_session(replica: Replica, body: bytes) -> None:
    answer = replica.as_("").post("/login", content=body)
    assert answer.status_code in (401, 422)


def test_a_form_of_another_site_is_refused(replica: Replica) -> None:
    assert error_of(log_in(replica.as_(""), ADMIN, Origin="http://evil.example"))[:2] == (403, "origin")
    assert log_in(replica.as_(""), ADMIN, Origin="http://127.0.0.1:8080").status_code == 303


def test_logging_out_ends_the_session(replica: Replica) -> None:
    http = replica.as_("")
    log_in(http, ADMIN)
    assert http.post("/logout", follow_redirects=False).status_code == 303
    assert http.get("/metrics").status_code == 401


@pytest.mark.parametrize(
    "cookie", ["", ".", "a.b", "e30=.e30=", "x" * 5000, "\xff", "W10=.W10=", "WyJhZG1pbiIsOTllOTld."]
)
def test_a_made_up_session_is_none(replica: Replica, cookie: str) -> None:
    answer = replica.as_("").get("/metrics", headers={"Cookie": f"{COOKIE}={cookie}".encode("latin-1")})
    assert answer.status_code == 401


def test_a_session_that_was_altered_is_none(replica: Replica) -> None:
    http = replica.as_("")
    log_in(http, READER)
    body, _, signature = http.cookies[COOKIE].partition(".")
    for altered in (f"{body[:-4]}AAA=.{signature}", f"{body}.{signature[:-2]}A=", f"{body}.", body):
        answer = replica.as_("").get("/metrics", headers={"Cookie": f"{COOKIE}={altered}"})
        assert answer.status_code == 401
