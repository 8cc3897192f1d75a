"""The coordinator's client: what it asks, and the one sentence it makes of every failure."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tiered.cli.api import CoordinatorClient, find_coordinator
from tiered.cli.cluster_file import ClusterState, write_cluster_file
from tiered.errors import ConfigError

URL = "http://127.0.0.1:9"
TENANT = {
    "policy": {
        "tenant": "acme",
        "hot_reserved_bytes": 0,
        "hot_limit_bytes": None,
        "redis_reserved_bytes": 0,
        "redis_limit_bytes": 1 << 30,
        "weight": 1.0,
        "over_quota": "evict_own",
    },
    "named": True,
    "hot": {"used_bytes": 4096, "blocks": 1},
    "redis": {"used_bytes": 0, "pending_bytes": 0, "blocks": 0},
    "tokens": {"asked": 32, "hot": 16, "peer": 0, "redis": 0, "missed": 16},
}

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler, *, token: str = "") -> CoordinatorClient:
    return CoordinatorClient(URL, token=token, transport=httpx.MockTransport(handler))


def answering(status: int, body: object) -> Handler:
    return lambda request: httpx.Response(status, json=body)


def raising(error: httpx.TransportError) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    return handler


def test_a_tenant_arrives_as_a_record() -> None:
    with client(answering(200, {"tenants": [TENANT]})) as api:
        [tenant] = api.tenants()
    assert tenant.policy.redis_limit_bytes == 1 << 30
    assert tenant.tokens.asked == 32


def test_fields_of_a_newer_coordinator_are_ignored() -> None:
    with client(answering(200, {**TENANT, "colour": "blue"})) as api:
        assert api.tenant("acme").named


def test_a_change_sends_only_what_was_given_and_the_token() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=TENANT)

    with client(handler, token="s3") as api:
        api.change_tenant("acme", {"redis_limit_bytes": None})
    assert seen[0].method == "PATCH"
    assert seen[0].url.path == "/v1/tenants/acme"
    assert json.loads(seen[0].content) == {"redis_limit_bytes": None}
    assert seen[0].headers["authorization"] == "Bearer s3"


def test_a_name_cannot_leave_its_place_in_the_path() -> None:
    seen: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return httpx.Response(200, json=TENANT)

    with client(handler) as api:
        api.tenant("../nodes")
        with pytest.raises(ConfigError, match="not a tenant's name"):
            api.tenant("..")
    assert seen == [b"/v1/tenants/..%2Fnodes"]


@pytest.mark.parametrize(
    ("handler", "parts"),
    [
        (raising(httpx.ConnectError("refused")), ["nothing answers", URL, "tiered up", "TIERED_COORDINATOR"]),
        (raising(httpx.ReadTimeout("slow")), ["did not answer within 5 s", "--coordinator"]),
        (answering(404, {"error": {"field": "tenant", "message": "there is no 'x'"}}), ["tenant: there is no 'x'"]),
        (answering(422, {"error": {"field": "", "message": "too much"}}), ["too much"]),
        (answering(401, {"error": {"field": "authorization", "message": "no"}}), ["TIERED_TOKEN"]),
        (lambda request: httpx.Response(502, text="<html>"), ["answered 502", "/v1/nodes"]),
        (lambda request: httpx.Response(200, text="hello"), ["not a coordinator of this version"]),
        (answering(200, {"nodes": [{"node": 1}]}), ["not a coordinator of this version"]),
    ],
)
def test_every_failure_is_one_sentence(handler: Handler, parts: list[str]) -> None:
    with client(handler) as api, pytest.raises(ConfigError) as caught:
        api.nodes()
    sentence = str(caught.value)
    assert "\n" not in sentence
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize(
    "call",
    [
        lambda api: api.clear({"tenant": "acme"}),
        lambda api: api.pin("acme", ["00"], lease_s=1.0),
        lambda api: api.unpin("acme", ["00"]),
    ],
)
def test_what_goes_over_the_blocks_of_redis_is_given_longer_than_other_calls(
    call: Callable[[CoordinatorClient], object],
) -> None:
    seen: list[dict[str, float]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.extensions["timeout"])
        raise httpx.ReadTimeout("slow")

    with client(handler) as api:
        with pytest.raises(ConfigError, match="did not answer within 300 s"):
            call(api)
        with pytest.raises(ConfigError, match="did not answer within 5 s"):
            api.stats()
    assert [(timeout["connect"], timeout["read"]) for timeout in seen] == [(5.0, 300.0), (5.0, 5.0)]


def test_the_address_given_wins_over_the_cluster_of_this_machine(tmp_path: Path) -> None:
    environ = {"TIERED_CACHE_DIR": str(tmp_path)}
    state = ClusterState("http://127.0.0.1:7777", "unix:///s", "tiered", os.getpid(), [])
    assert find_coordinator(None, environ) == "http://127.0.0.1:8080"
    write_cluster_file(state, environ)
    assert find_coordinator(None, environ) == "http://127.0.0.1:7777"
    assert find_coordinator("http://other:1", environ) == "http://other:1"


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8080",
        "ftp://x",
        "http://",
        "http://[",
        "http://h:port",
        "nonsense",
        f"http://{'a' * 64}:1",
        "http://a..b",
        "http://\u2603\u0301.\u200d:1",
        "http://xn--\u00fc",
        "http://h/\x00",
    ],
)
def test_an_address_that_is_none_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match="--coordinator http://host:port"):
        find_coordinator(url, {})
