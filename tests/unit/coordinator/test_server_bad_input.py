"""Requests that nobody sends by accident: each is refused with a 4xx that names the field, and changes nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message

from coordinator.server.body_limit import BODY_BYTES_MAX, PROMPT_BYTES_MAX, BodyLimit
from tests.unit.coordinator.conftest import Parts
from tests.unit.coordinator.test_server_tenants import error_of

HASH = "00" * 32


@pytest.fixture(autouse=True)
def _acme(api: TestClient) -> None:
    assert api.post("/v1/tenants", json={"tenant": "acme"}).status_code == 201


@pytest.mark.parametrize(
    ("value", "field"),
    [
        *((f'{{"redis_limit_bytes": {bad}}}', "redis_limit_bytes") for bad in ("-1", "1e400", "1.5", "true", '"5"')),
        *((f'{{"redis_limit_bytes": {bad}}}', "redis_limit_bytes") for bad in ("NaN", "Infinity", str(1 << 64))),
        *((f'{{"weight": {bad}}}', "weight") for bad in ("NaN", "Infinity", "-Infinity", "0", "1e400", "[]", "{}")),
        *((f'{{"redis_ttl_s": {bad}}}', "redis_ttl_s") for bad in ("NaN", "-0.0", "1e300", "true", '"5"')),
        ('{"weight": 1' + "0" * 5_000 + "}", "body"),
        ('{"sharing": "group:' + "x" * 10_000 + '"}', "sharing"),
        ('{"sharing": "private\\u0000"}', "sharing"),
        ('{"sharing": "\\ud800"}', "sharing"),
        ('{"over_quota": "\\udfff"}', "over_quota"),
        ('{"\\ud800": 1}', "body"),
        ('{"tenant": "globex"}', "tenant"),
        ('{"tenant": ["acme"]}', "tenant"),
        ('{"weight": 2', "body"),
        ('{"weight": 2} {}', "body"),
        ("{'weight': 2}", "body"),
        ("[" * 30_000, "body"),
        ('{"a":' * 10_000, "body"),
        ("null", "body"),
        ("[]", "body"),
        ('"{}"', "body"),
        ("7", "body"),
        ("", "body"),
    ],
)
def test_a_body_that_makes_no_sense_names_its_field(api: TestClient, parts: Parts, value: str, field: str) -> None:
    revision = parts.tenants.revision()
    headers = {"Content-Type": "application/json"}
    status, named, message = error_of(api.patch("/v1/tenants/acme", content=value.encode(), headers=headers))
    assert status in (400, 422)
    assert named == field
    assert len(message) < 500
    assert parts.tenants.revision() == revision


@pytest.mark.parametrize("body", [b"\xff\xfe{}", b'{"sharing": "\xff"}', b"\x00", b"{}\x00"])
def test_a_body_that_is_no_text_is_refused(api: TestClient, body: bytes) -> None:
    answer = api.patch("/v1/tenants/acme", content=body, headers={"Content-Type": "application/json"})
    assert error_of(answer)[0] in (400, 422)
    assert error_of(answer)[1] == "body"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "application/x-www-form-urlencoded", "multipart/form-data", "é", ""]
)
def test_a_body_of_another_type_is_refused(api: TestClient, kind: str) -> None:
    headers = {"Content-Type": kind.encode("latin-1")}
    answer = api.patch("/v1/tenants/acme", content=b'{"weight": 2}', headers=headers)
    assert error_of(answer)[:2] == (422, "body")
    assert api.get("/v1/tenants/acme").json()["policy"]["weight"] == 1


def test_of_two_values_for_one_key_the_last_counts_as_everywhere_in_python(api: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    answer = api.patch("/v1/tenants/acme", content=b'{"weight": -5, "weight": 3}', headers=headers)
    assert answer.json()["policy"]["weight"] == 3


NAMES = ("%00", "a%00b", "..", "..%2f..%2fetc", "%2e%2e", "*", ":capacity", "o:acme", "a%0ab", "%ff", "x" * 65, "%20")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/tenants/{}", None),
        ("DELETE", "/v1/tenants/{}", None),
        ("DELETE", "/v1/tenants/{}/blocks", None),
        ("PATCH", "/v1/tenants/{}", {"weight": 2}),
        ("PUT", "/v1/tenants/{}/pins", {"hashes": [HASH], "lease_s": 5}),
        ("GET", "/v1/tenants/{}/tokens", None),
        ("POST", "/v1/tenants/{}/tokens", {}),
        ("DELETE", "/v1/tenants/{}/tokens/abc", None),
    ],
)
def test_a_name_that_no_tenant_can_have_is_refused(
    api: TestClient, parts: Parts, method: str, path: str, body: dict[str, Any] | None, name: str
) -> None:
    before = dict(parts.client.hgetall(parts.keys.limits()))
    status, field, _ = error_of(api.request(method, path.format(name), json=body))
    assert (status, field) in {(422, "tenant"), (404, "path"), (405, "method"), (404, "tenant")}
    assert parts.client.hgetall(parts.keys.limits()) == before


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"hashes": [], "lease_s": 5}, "hashes"),
        ({"hashes": ["zz"], "lease_s": 5}, "hashes.0"),
        ({"hashes": [HASH, HASH[:-1]], "lease_s": 5}, "hashes.1"),
        ({"hashes": [HASH + "\n"], "lease_s": 5}, "hashes.0"),
        ({"hashes": HASH, "lease_s": 5}, "hashes"),
        ({"hashes": [HASH], "lease_s": -1}, "lease_s"),
        ({"hashes": [HASH], "lease_s": 1e18}, "lease_s"),
        ({"hashes": [HASH], "lease_s": True}, "lease_s"),
        ({"hashes": [HASH]}, "lease_s"),
        ({"hashes": [HASH] * 65_537, "lease_s": 5}, "hashes"),
        ({"hashes": [HASH], "lease_s": 5, "colour": "blue"}, "colour"),
    ],
)
def test_a_pin_that_makes_no_sense_names_its_field(api: TestClient, body: dict[str, Any], field: str) -> None:
    assert error_of(api.put("/v1/tenants/acme/pins", json=body))[:2] == (422, field)


def test_as_many_blocks_as_are_allowed_fit_into_a_body(api: TestClient) -> None:
    body = {"hashes": [HASH] * 65_536, "lease_s": 5}
    assert len(json.dumps(body)) > BODY_BYTES_MAX
    assert api.put("/v1/tenants/acme/pins", json=body).status_code == 200


@pytest.mark.parametrize("path", ["/v1/tenants", "/login"])
def test_a_body_is_bounded_whether_or_not_it_says_how_long_it_is(api: TestClient, path: str) -> None:
    too_much = BODY_BYTES_MAX + 1
    assert error_of(api.post(path, content=b" " * too_much))[:2] == (413, "body")
    assert error_of(api.post(path, content=iter([b" " * 1000] * (too_much // 1000 + 1))))[:2] == (413, "body")


def test_a_prompt_is_bounded_higher(api: TestClient) -> None:
    body = b" " * (PROMPT_BYTES_MAX + 1)
    assert error_of(api.put("/v1/tenants/acme/pins", content=body))[:2] == (413, "body")


def test_a_body_in_chunks_is_read_like_any_other(api: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    answer = api.patch("/v1/tenants/acme", content=iter([b'{"wei', b'ght": 4}']), headers=headers)
    assert answer.json()["policy"]["weight"] == 4


@pytest.mark.parametrize("length", ["-1", "+5", "1e3", "0x10", "٣", "9" * 5_000, "", "5, 5"])
def test_a_length_that_is_none_is_refused(api: TestClient, length: str) -> None:
    headers = {"Content-Length": length.encode()}
    answer = api.post("/v1/tenants", content=b"{}", headers=headers)
    assert error_of(answer)[:2] == (413, "body")


def test_who_may_not_call_has_no_body_read(parts: Parts) -> None:
    """Else anybody could make us hold as many megabytes as connections."""

    http = parts.http(admin_token="s3cret")
    assert asyncio.run(_status_without_reading(http.app, [(b"host", b"x")])) == 401


async def _status_without_reading(app: Any, headers: list[tuple[bytes, bytes]]) -> int:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    path = "/v1/tenants"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    await app(scope | {"headers": headers, "scheme": "http", "http_version": "1.1", "root_path": ""}, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "CONNECT", "BREW", "PROPFIND"])
@pytest.mark.parametrize("path", ["/v1/tenants", "/v1/tenants/acme", "/v1/stats", "/metrics", "/healthz", "/docs"])
def test_other_methods_are_refused(api: TestClient, method: str, path: str) -> None:
    answer = api.request(method, path)
    assert answer.status_code == 405
    assert "allow" in answer.headers


def test_ten_thousand_bytes_of_headers_change_nothing(api: TestClient) -> None:
    assert api.get("/v1/stats", headers={"X-Long": "x" * 10_000}).status_code == 200
    answer = api.get("/v1/stats", headers={"Authorization": "Bearer " + "x" * 10_000})
    assert error_of(answer)[:2] == (401, "authorization")
    assert len(answer.text) < 500


def test_a_slow_body_is_given_up() -> None:
    answered: list[Message] = []

    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("the application was reached")

    async def receive() -> Message:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Message) -> None:
        answered.append(message)

    limit = BodyLimit(never, body_s=0.1)
    asyncio.run(limit({"type": "http", "path": "/v1/tenants", "headers": []}, receive, send))
    assert answered[0]["status"] == 408
    assert json.loads(answered[1]["body"])["error"]["field"] == "body"


def test_a_client_that_goes_away_meanwhile_reaches_no_route() -> None:
    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("the application was reached")

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError("nobody is there to be answered")

    asyncio.run(BodyLimit(never)({"type": "http", "path": "/v1/tenants", "headers": []}, receive, send))
