"""``/v1/route`` and ``/v1/prefixes`` as their callers see them: answers, refusals, and who learns what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from coordinator.server.prompt import TOKENS_MAX
from coordinator.view.mirror import REDIS, Life, Mirror
from tests.support.content import LAYOUT, SCOPE, hashes_of, prompt
from tests.unit.coordinator.builders import node_info
from tests.unit.coordinator.conftest import Parts
from tests.unit.coordinator.test_server_tenants import error_of
from tiered.hashing.scope import encode_scope
from tiered.tenancy.policy import TenantPolicy
from tiered.types import NodeId, NodeRates, NodeStats, PrefixUse, SourceRate, TenantId

N = 6
TOKENS = prompt(3, N)
HASHES = hashes_of(TOKENS)
HEX = [block_hash.hex() for block_hash in HASHES]
QUICK = SourceRate(latency_s=0.001, bytes_per_s=1e9)
RATES = NodeRates(peers=QUICK, redis=QUICK, prefill_tokens_per_s=1_000.0)
OTHER = msgspec.structs.replace(SCOPE, model="other")


def join(
    parts: Parts, name: str, *scopes: str, rates: NodeRates = RATES, prefixes: tuple[PrefixUse, ...] = ()
) -> Life:
    epoch = parts.membership.join(node_info(name), lease_ttl_s=60.0)
    stats = NodeStats(engines=len(scopes), scopes=scopes, rates=rates, prefixes=prefixes)
    parts.membership.renew(NodeId(name), epoch, stats, lease_ttl_s=60.0)
    return Life(NodeId(name), epoch)


@pytest.fixture
def mirror(parts: Parts) -> Mirror:
    """Of two nodes with engines of one model: n1 holds the whole prompt of acme, Redis the first half."""
    n1 = join(
        parts,
        "n1",
        encode_scope(SCOPE),
        prefixes=(PrefixUse("acme", HEX[1], 2, 30), PrefixUse("globex", "ab", 5, 4, HEX[1])),
    )
    join(parts, "n2", encode_scope(SCOPE), prefixes=(PrefixUse("acme", HEX[1], 2, 3),))
    parts.keeper.refresh()
    mirror = Mirror()
    mirror.load(0, 0, [(n1, [b"".join(HASHES)]), (REDIS, [b"".join(HASHES[:3])])])
    return mirror


@pytest.fixture
def http(parts: Parts, mirror: Mirror) -> Iterator[TestClient]:
    with parts.http(mirror=mirror) as client:
        yield client


def test_a_router_learns_which_node_holds_the_prompt(http: TestClient) -> None:
    answer = http.post("/v1/route", json={"tenant": "acme", "tokens": [*TOKENS, 1, 2, 3]})
    assert answer.status_code == 200
    said = answer.json()
    assert (said["model"], said["block_tokens"], said["blocks"]) == ("test", 16, N)
    first, second = said["nodes"]
    assert first == {
        "node": "n1",
        "peer": "10.0.0.7",
        "hot_blocks": N,
        "peer_blocks": 0,
        "redis_blocks": 0,
        "computed_tokens": 3,
        "expected_ttft_s": 0.003,
        "uncached_ttft_s": round((N * 16 + 3) / 1_000, 6),
        "waiting_s": 0.0,
        "assumed": [],
    }
    assert (second["node"], second["hot_blocks"], second["computed_tokens"]) == ("n2", 0, 3)
    assert second["peer_blocks"] + second["redis_blocks"] == N
    assert said["not_eligible"] == []
    assert said["unmeasured"] == []


def test_hashes_are_as_good_as_tokens_but_for_the_partial_block(http: TestClient) -> None:
    by_tokens = http.post("/v1/route", json={"tenant": "acme", "tokens": TOKENS}).json()
    by_hashes = http.post("/v1/route", json={"tenant": "acme", "hashes": HEX, "model": "test"}).json()
    for said in (by_tokens, by_hashes):
        said.pop("age_s")
    assert by_hashes == by_tokens


def test_another_tenant_with_the_same_prompt_finds_nothing(http: TestClient) -> None:
    said = http.post("/v1/route", json={"tenant": "globex", "tokens": TOKENS}).json()
    assert [(each["hot_blocks"], each["computed_tokens"]) for each in said["nodes"]] == [(0, N * 16)] * 2


def test_tenants_of_a_group_find_the_same_blocks(parts: Parts, http: TestClient) -> None:
    for name in ("red", "blue"):
        parts.tenants.create(TenantPolicy(tenant=name, sharing="group:colours"))
    parts.keeper.refresh()
    said = [http.post("/v1/prefixes", json={"tenant": name, "tokens": TOKENS}).json() for name in ("red", "blue")]
    assert said[0]["scopes"][0]["hashes"] == said[1]["scopes"][0]["hashes"] != HEX


def test_a_limit_shortens_what_is_listed(http: TestClient) -> None:
    said = http.post("/v1/route", json={"tenant": "acme", "tokens": TOKENS, "limit": 1}).json()
    assert [each["node"] for each in said["nodes"]] == ["n1"]


def test_nodes_that_cannot_have_it_say_why(parts: Parts, mirror: Mirror) -> None:
    join(parts, "n3")
    parts.keeper.refresh()
    said = parts.http(mirror=mirror).post("/v1/route", json={"tenant": "acme", "tokens": TOKENS}).json()
    assert said["not_eligible"] == [{"node": "n3", "reason": "no engine of model test is attached"}]


def test_several_models_must_be_told_apart(parts: Parts, mirror: Mirror) -> None:
    join(parts, "n3", encode_scope(OTHER))
    parts.keeper.refresh()
    http = parts.http(mirror=mirror)
    for asked in ({"tokens": TOKENS}, {"hashes": HEX}):
        status, field, message = error_of(http.post("/v1/route", json={"tenant": "acme", **asked}))
        assert (status, field) == (422, "model")
        assert "other, test" in message
    said = http.post("/v1/route", json={"tenant": "acme", "tokens": TOKENS, "model": "test"}).json()
    assert [each["node"] for each in said["nodes"]] == ["n1", "n2"]
    assert error_of(http.post("/v1/route", json={"tenant": "acme", "tokens": [], "model": "x"}))[:2] == (422, "model")


def test_without_any_engine_there_is_nothing_to_name_a_prompt_by(parts: Parts) -> None:
    parts.keeper.refresh()
    status, field, message = error_of(parts.http().post("/v1/route", json={"tenant": "acme", "tokens": TOKENS}))
    assert (status, field) == (422, "model")
    assert "no engine is attached" in message


def test_where_the_blocks_of_a_prompt_are(http: TestClient) -> None:
    said = http.post("/v1/prefixes", json={"tenant": "acme", "tokens": [*TOKENS, *range(16)]}).json()
    (scope,) = said["scopes"]
    assert (scope["model"], scope["blocks"], scope["covered_blocks"]) == ("test", N + 1, N)
    assert scope["hashes"][:N] == HEX
    assert scope["tiers"] == {"hot": N, "redis": 3, "nowhere": 1}
    assert scope["runs"] == [
        {"first_block": 0, "blocks": 3, "nodes": ["n1"], "n_nodes": 1, "redis": True},
        {"first_block": 3, "blocks": 3, "nodes": ["n1"], "n_nodes": 1, "redis": False},
        {"first_block": 6, "blocks": 1, "nodes": [], "n_nodes": 0, "redis": False},
    ]


def test_hashes_need_no_model_to_be_found(parts: Parts, mirror: Mirror) -> None:
    join(parts, "n3", encode_scope(OTHER))
    parts.keeper.refresh()
    (scope,) = parts.http(mirror=mirror).post("/v1/prefixes", json={"tenant": "acme", "hashes": HEX}).json()["scopes"]
    assert (scope["model"], scope["tiers"]["hot"]) == (None, N)


def test_the_prefixes_used_most_are_summed_over_nodes_and_cut_at_the_limit(http: TestClient) -> None:
    said = http.get("/v1/prefixes").json()["prefixes"]
    assert said == [
        {"tenant": "acme", "hash": HEX[1], "blocks": 2, "hits": 33, "nodes": ["n1", "n2"]}
        | {"redis": True, "within": None},
        {"tenant": "globex", "hash": "ab", "blocks": 5, "hits": 4, "nodes": ["n1"]}
        | {"redis": False, "within": HEX[1]},
    ]
    assert http.get("/v1/prefixes", params={"limit": 1}).json()["prefixes"] == said[:1]
    assert error_of(http.get("/v1/prefixes", params={"limit": 0}))[:2] == (422, "limit")


def test_a_tenants_token_sees_its_own_prefixes_alone(parts: Parts, mirror: Mirror) -> None:
    parts.tenants.create(TenantPolicy(tenant="acme"))
    parts.keeper.refresh()
    with parts.http(admin_token="a" * 20, bearer="a" * 20) as admin:
        token = admin.post("/v1/tenants/acme/tokens", json={}).json()["token"]
    with parts.http(admin_token="a" * 20, bearer=token, mirror=mirror) as own:
        for path in ("/v1/route", "/v1/prefixes"):
            assert own.post(path, json={"tenant": "acme", "tokens": TOKENS}).status_code == 200
            assert error_of(own.post(path, json={"tenant": "globex", "tokens": TOKENS}))[:2] == (403, "tenant")
            # globex's hashes of a guessed prompt can be computed by anybody: they must not tell what globex asked.
            guessed = [h.hex() for h in hashes_of(TOKENS, tenant=TenantId("globex"))]
            assert error_of(own.post(path, json={"tenant": "acme", "hashes": guessed}))[:2] == (403, "hashes")
        assert [each["tenant"] for each in own.get("/v1/prefixes").json()["prefixes"]] == ["acme"]
        join(parts, "n3", encode_scope(OTHER))
        parts.keeper.refresh()
        _, _, message = error_of(own.post("/v1/route", json={"tenant": "acme", "tokens": TOKENS}))
        assert "other" not in message
        assert own.get("/v1/stats").json()["mirror"] is None
    with parts.http(admin_token="a" * 20, mirror=mirror) as nobody:
        assert nobody.post("/v1/route", json={"tenant": "acme", "tokens": TOKENS}).status_code == 401


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tokens": TOKENS}, "tenant"),
        ({"tenant": "acme"}, "tokens"),
        ({"tenant": "acme", "tokens": TOKENS, "hashes": HEX}, "tokens"),
        ({"tenant": "ac me", "tokens": TOKENS}, "tenant"),
        ({"tenant": "", "tokens": TOKENS}, "tenant"),
        ({"tenant": 5, "tokens": TOKENS}, "tenant"),
        ({"tenant": "acme", "tokens": "abc"}, "tokens"),
        ({"tenant": "acme", "tokens": [1, -1]}, "tokens.1"),
        ({"tenant": "acme", "tokens": [1 << 32]}, "tokens.0"),
        ({"tenant": "acme", "tokens": [1.5]}, "tokens.0"),
        ({"tenant": "acme", "tokens": [True]}, "tokens.0"),
        ({"tenant": "acme", "tokens": [None]}, "tokens.0"),
        ({"tenant": "acme", "hashes": [HEX[0], "ab"]}, "hashes.1"),
        ({"tenant": "acme", "hashes": ["zz" * 32]}, "hashes.0"),
        ({"tenant": "acme", "hashes": [" " * 4 + HEX[0][4:]]}, "hashes.0"),
        ({"tenant": "acme", "hashes": ["é" * 64]}, "hashes.0"),
        ({"tenant": "acme", "hashes": [5]}, "hashes.0"),
        ({"tenant": "acme", "hashes": HEX * (65_536 // N + 1)}, "hashes"),
        ({"tenant": "acme", "tokens": TOKENS, "model": ""}, "model"),
        ({"tenant": "acme", "tokens": TOKENS, "model": "m" * 513}, "model"),
        ({"tenant": "acme", "tokens": TOKENS, "limit": 0}, "limit"),
        ({"tenant": "acme", "tokens": TOKENS, "limit": 1_001}, "limit"),
        ({"tenant": "acme", "tokens": TOKENS, "tenat": "x"}, "tenat"),
        ([1, 2], "body"),
        (None, "body"),
        ("tokens", "body"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/route", "/v1/prefixes"])
def test_a_wrong_body_is_refused_by_the_name_of_what_is_wrong(
    http: TestClient, path: str, body: Any, field: str
) -> None:
    assert error_of(http.post(path, json=body))[:2] == (422, field)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b'{"tenant": "acme", "tokens": [1,]}', b'{"tenant": "\xff"}']
)
def test_a_body_that_is_no_json_is_refused(http: TestClient, body: bytes) -> None:
    assert error_of(http.post("/v1/route", content=body))[:2] == (422, "body")


def test_a_million_tokens_are_taken_and_one_more_is_not(http: TestClient) -> None:
    body = {"tenant": "acme", "tokens": [*TOKENS, *([7] * (TOKENS_MAX - len(TOKENS)))]}
    said = http.post("/v1/route", content=json.dumps(body)).json()
    assert (said["blocks"], said["nodes"][0]["hot_blocks"]) == (TOKENS_MAX // LAYOUT.block_tokens, N)
    body["tokens"] = [7] * (TOKENS_MAX + 1)
    assert error_of(http.post("/v1/route", content=json.dumps(body)))[:2] == (422, "tokens")


def test_the_document_says_what_a_prompt_looks_like(http: TestClient) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    schema = paths["/v1/route"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["tenant"]
    assert set(schema["properties"]) == {"tenant", "tokens", "hashes", "model", "limit"}
    assert paths["/v1/prefixes"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
