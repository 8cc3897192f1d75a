"""``/v1/blocks/{hash}``, its ``/why`` and ``/v1/evictions``: from nodes and Redis, and what a tenant sees of them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from fastapi.testclient import TestClient

from tests.support.fake_node import FakeNode, fake_node
from tests.unit.coordinator.conftest import Parts
from tests.unit.coordinator.test_server_tenants import error_of
from tests.unit.core.builders import World, chain
from tiered.cluster.ledger import ReserveAnswer, ReserveRequest
from tiered.core.why import Evicted, Terms, WhyLog
from tiered.tenancy.policy import TenantPolicy
from tiered.types import BlockHash, Epoch, Happening, NodeId, TenantId

RED, BLUE = TenantId("red"), TenantId("blue")
A, B = BlockHash(b"a" * 32), BlockHash(b"b" * 32)
NOBODYS = BlockHash(b"n" * 32)
SIZE = 10
TERMS = Terms("red", "lru", "room", "blue", 4096, 1024, 1.0, 2048, -1, 0, 1.0)


@pytest.fixture
def nodes(parts: Parts) -> Iterator[tuple[FakeNode, FakeNode]]:
    """n1, whose core holds two blocks of red; and n2, which holds none."""
    world = World(4)
    world.core.why = WhyLog()
    world.save(chain("hot", 2))
    with ExitStack() as stack:
        first, _ = stack.enter_context(fake_node("n1", parts.membership, core=world.core))
        second, _ = stack.enter_context(fake_node("n2", parts.membership))
        first.ring.turn(world.core.why.take())
        parts.keeper.refresh()
        yield first, second


def store(parts: Parts, block: BlockHash, tenant: TenantId = RED) -> ReserveAnswer:
    answer = parts.ledger.reserve([ReserveRequest(block, tenant, SIZE, 3)], ttl_s=30.0)[0]
    if answer.reserved:
        parts.client.set(parts.keys.block(block), b"x" * SIZE)
        assert parts.ledger.commit([(block, tenant, SIZE)]) == [True]
    return answer


def of_tenant(parts: Parts, tenant: str) -> TestClient:
    """Who calls with that tenant's own token."""
    parts.tenants.create(TenantPolicy(tenant=tenant))
    with parts.http(admin_token="s3cret", bearer="s3cret") as admin:
        token = admin.post(f"/v1/tenants/{tenant}/tokens", json={}).json()["token"]
    return parts.http(admin_token="s3cret", bearer=token)


def test_a_block_is_told_with_every_place_where_it_is(
    api: TestClient, parts: Parts, nodes: tuple[FakeNode, FakeNode]
) -> None:
    first, second = nodes
    block = chain("hot", 2)[1]
    parts.directory.announce(NodeId("n1"), first.life, stored=[block], removed=[])
    parts.directory.announce(NodeId("n2"), second.life, stored=[block], removed=[])
    store(parts, block)
    body = api.get(f"/v1/blocks/{block.hex()}").json()
    assert body["nodes"] == [
        {
            "node": "n1",
            "epoch": first.life,
            "state": "ready",
            "announced": True,
            "tenants": ["red"],
            "hits": 0,
            "pins": 0,
            "depth": 1,
            "idle_uses": body["nodes"][0]["idle_uses"],
        },
        {
            "node": "n2",
            "epoch": second.life,
            "state": "absent",
            "announced": True,
            "tenants": [],
            "hits": 0,
            "pins": 0,
            "depth": 0,
            "idle_uses": 0,
        },
    ]
    redis = body["redis"]
    assert (redis["bytes"], redis["tenants"], redis["depth"], redis["pinned_for_s"]) == (SIZE, ["red"], 3, 0)
    assert 0 <= redis["idle_s"] < 30
    assert (body["ended_owners"], body["silent"]) == ([], [])


def test_a_pin_in_redis_says_for_how_long(api: TestClient, parts: Parts) -> None:
    store(parts, A)
    parts.ledger.pin([A], RED, lease_s=60)
    redis = api.get(f"/v1/blocks/{A.hex()}").json()["redis"]
    assert 50 < redis["pinned_for_s"] <= 60
    assert redis["idle_s"] == 0


def test_owners_that_do_not_count_are_named_with_the_reason(
    api: TestClient, parts: Parts, nodes: tuple[FakeNode, FakeNode]
) -> None:
    first, _ = nodes
    parts.directory.announce(NodeId("n1"), Epoch(first.life - 1), stored=[A], removed=[])
    parts.directory.announce(NodeId("gone"), Epoch(7), stored=[A], removed=[])
    body = api.get(f"/v1/blocks/{A.hex()}").json()
    assert body["nodes"] == []
    assert {each["node"]: each["reason"] for each in body["ended_owners"]} == {
        "n1": f"that life has ended; epoch {first.life} of the node runs now",
        "gone": "no node of this name is a member now",
    }


def test_a_history_is_merged_from_all_that_remember_oldest_first(
    api: TestClient, parts: Parts, nodes: tuple[FakeNode, FakeNode]
) -> None:
    first, second = nodes
    parts.tenants.create(TenantPolicy(tenant="red", redis_limit_bytes=SIZE))
    first.ring.turn(
        [Happening("stored", A, "red", "hot", 1, {"depth": 0}), Evicted(A, TERMS, 2, 0, 3, 9, 4096, "begun")]
    )
    second.ring.turn([Happening("fetched", A, "red", "hot", 1, {"depth": 0, "source": "redis"})])
    store(parts, A)
    store(parts, B)
    body = api.get(f"/v1/blocks/{A.hex()}/why").json()
    seen = [(event["where"], event["what"], event["sentence"]) for event in body["history"]]
    assert seen == [
        ("n1", "stored", "stored: an engine computed it, depth 0"),
        (
            "n1",
            "evicted",
            "evicted: lru chose it after 2 that might not leave (3 times hit, last used 9 uses of the pool ago), "
            "so that blue could have the room; red had 4 KiB of 4 KiB, 1 KiB reserved, blue 2 KiB without a limit; "
            "a copy for Redis was begun",
        ),
        ("n2", "fetched", "fetched: it came from Redis, depth 0"),
        ("redis", "evicted", seen[3][2]),
    ]
    assert seen[3][2].startswith("evicted from Redis, unused for ")
    assert "since red stood at its own limit; red had 10 B of 10 B" in seen[3][2]
    assert body["history"][1]["detail"]["for_used"] == 2048
    assert [event["at"] for event in body["history"]] == sorted(event["at"] for event in body["history"])
    assert "why.events_max" in body["note"]
    assert (body["nodes"], body["redis"], body["silent"]) == ([], None, [])


def test_a_block_that_is_nowhere_now_is_not_found_but_its_history_is(
    api: TestClient, parts: Parts, nodes: tuple[FakeNode, FakeNode]
) -> None:
    nodes[0].ring.turn([Happening("stored", A, "red")])
    status, field, message = error_of(api.get(f"/v1/blocks/{A.hex()}"))
    assert (status, field) == (404, "hash")
    assert message.endswith(f"what happened to it is at /v1/blocks/{A.hex()}/why")
    assert api.get(f"/v1/blocks/{A.hex()}/why").status_code == 200


@pytest.mark.parametrize("path", ["", "/why"])
def test_a_block_that_nobody_knows_is_not_found(api: TestClient, path: str, nodes: tuple[FakeNode, FakeNode]) -> None:
    status, field, message = error_of(api.get(f"/v1/blocks/{NOBODYS.hex()}{path}"))
    assert (status, field, message) == (404, "hash", f"nobody has block {NOBODYS.hex()} now")


@pytest.mark.parametrize("path", ["", "/why"])
@pytest.mark.parametrize("block", ["00", "z" * 64, "0" * 63, "0" * 65, "%00" * 64, "\u0660" * 64])
def test_what_is_no_hash_is_said_to_be_none(api: TestClient, path: str, block: str) -> None:
    status, field, _ = error_of(api.get(f"/v1/blocks/{block}{path}"))
    assert (status, field) == (422, "hash")


def test_a_node_that_gives_no_answer_and_one_whose_lease_lapsed_are_named(
    api: TestClient, parts: Parts, nodes: tuple[FakeNode, FakeNode]
) -> None:
    first, second = nodes
    first.ring.turn([Happening("stored", A, "red")])
    second.broken = True
    parts.directory.announce(NodeId("n2"), second.life, stored=[A], removed=[])
    parts.client.delete(parts.keys.node_lease(NodeId("n1")))
    parts.keeper.refresh()
    body = api.get(f"/v1/blocks/{A.hex()}").json()
    assert [(node["node"], node["state"]) for node in body["nodes"]] == [("n2", "unknown")]
    assert {each["who"] for each in body["silent"]} == {"n1", "n2"}
    assert next(each["reason"] for each in body["silent"] if each["who"] == "n1").startswith("its lease has lapsed")
    _, _, message = error_of(api.get(f"/v1/blocks/{NOBODYS.hex()}"))
    assert "no answer came from n2, n1" in message


def test_a_coordinator_with_another_secret_says_which_setting_to_mend(
    parts: Parts, nodes: tuple[FakeNode, FakeNode]
) -> None:
    store(parts, A)
    body = parts.http(secret="other").get(f"/v1/blocks/{A.hex()}").json()
    assert body["redis"] is not None
    assert all("cluster.secret" in each["reason"] for each in body["silent"])
    assert len(body["silent"]) == 2


def test_without_redis_the_nodes_still_say_what_they_know(
    api: TestClient, parts: Parts, nodes: tuple[FakeNode, FakeNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiered.cluster.why import BooksWhy
    from tiered.errors import TierUnavailable

    def away(*_: object) -> None:
        raise TierUnavailable("redis is away")

    monkeypatch.setattr(BooksWhy, "found", away)
    block = chain("hot", 2)[0]
    body = api.get(f"/v1/blocks/{block.hex()}/why").json()
    assert body["silent"] == [{"who": "redis", "reason": "redis is away"}]
    assert [node["state"] for node in body["nodes"]] == ["ready"]
    assert [event["what"] for event in body["history"]] == ["stored"]


# What a tenant sees.


def test_a_tenant_sees_its_own_blocks_and_nothing_of_others(parts: Parts, nodes: tuple[FakeNode, FakeNode]) -> None:
    first, _ = nodes
    own, others = chain("hot", 2)[0], BlockHash(b"o" * 32)
    first.ring.turn([Happening("stored", others, "blue"), Evicted(own, TERMS, 0, 0, 0, 1, 4096, "never")])
    store(parts, others, BLUE)
    store(parts, own)
    store(parts, own, BLUE)
    with of_tenant(parts, "red") as red:
        body = red.get(f"/v1/blocks/{own.hex()}/why").json()
        assert body["redis"]["tenants"] == ["red"]
        assert [node["tenants"] for node in body["nodes"]] == [["red"]]
        evicted = body["history"][-1]
        assert evicted["detail"]["for_tenant"] == "another tenant"
        assert not {"for_used", "for_limit", "for_reserved", "for_weight"} & evicted["detail"].keys()
        assert "another tenant could have the room" in evicted["sentence"]
        assert "blue" not in str(body)
        for path in ("", "/why"):
            unseen = error_of(red.get(f"/v1/blocks/{others.hex()}{path}"))
            nobodys = error_of(red.get(f"/v1/blocks/{NOBODYS.hex()}{path}"))
            assert unseen[2].replace(others.hex(), "") == nobodys[2].replace(NOBODYS.hex(), "")


def test_a_tenant_follows_its_own_events_alone(parts: Parts, nodes: tuple[FakeNode, FakeNode]) -> None:
    first, _ = nodes
    parts.tenants.create(TenantPolicy(tenant="blue", redis_limit_bytes=0))
    store(parts, B, BLUE)
    first.ring.turn([Happening("refused", A, "red", "hot", 1, {"why": "full", "free_blocks": 3})])
    first.ring.turn([Happening("refused", B, "blue", "hot", 1, {"why": "full"})])
    with of_tenant(parts, "red") as red:
        events = red.get("/v1/evictions", params={"what": "all"}).json()["events"]
        assert {event["tenant"] for event in events} == {"red"}
        assert all("free_blocks" not in event["detail"] for event in events)
        assert error_of(red.get("/v1/evictions", params={"tenant": "blue"}))[:2] == (403, "tenant")


# Evictions.


def test_the_newest_come_first_from_every_source_and_what_is_no_loss_is_left_out(
    api: TestClient, parts: Parts, nodes: tuple[FakeNode, FakeNode]
) -> None:
    first, second = nodes
    parts.tenants.create(TenantPolicy(tenant="red", redis_limit_bytes=SIZE))
    store(parts, A)
    first.ring.turn([Happening("evicted", A, "red")])
    second.ring.turn([Happening("fetched", A, "red"), Happening("missed", B, "red")])
    assert store(parts, B) is ReserveAnswer.RESERVED_AFTER_EVICTING_OWN
    body = api.get("/v1/evictions").json()
    assert {(event["where"], event["what"]) for event in body["events"]} == {
        ("n1", "evicted"),
        ("n2", "missed"),
        ("redis", "evicted"),
    }
    times = [event["at"] for event in body["events"]]
    assert times == sorted(times, reverse=True)
    everything = api.get("/v1/evictions", params={"what": "all"}).json()["events"]
    assert {event["what"] for event in everything} == {"stored", "evicted", "fetched", "missed"}
    assert len(api.get("/v1/evictions", params={"limit": 2}).json()["events"]) == 2


def test_a_filter_by_tenant_node_and_kind_holds(
    api: TestClient, parts: Parts, nodes: tuple[FakeNode, FakeNode]
) -> None:
    first, second = nodes
    parts.tenants.create(TenantPolicy(tenant="blue", redis_limit_bytes=0))
    store(parts, B, BLUE)
    first.ring.turn([Happening("evicted", A, "red"), Happening("evicted", B, "blue")])
    second.ring.turn([Happening("missed", A, "red")])

    def seen(**query: object) -> set[tuple[str, str, str]]:
        events = api.get("/v1/evictions", params=query).json()["events"]
        return {(event["where"], event["what"], event["tenant"]) for event in events}

    assert seen(tenant="blue") == {("n1", "evicted", "blue"), ("redis", "refused", "blue")}
    assert seen(node="n1") == {("n1", "evicted", "red"), ("n1", "evicted", "blue")}
    assert seen(node="redis") == {("redis", "refused", "blue")}
    assert seen(what=["missed", "refused"]) == {("n2", "missed", "red"), ("redis", "refused", "blue")}


def test_who_follows_gets_each_event_once(api: TestClient, parts: Parts, nodes: tuple[FakeNode, FakeNode]) -> None:
    first, second = nodes
    parts.tenants.create(TenantPolicy(tenant="blue", redis_limit_bytes=0))
    after = api.get("/v1/evictions").json()["after"]
    seen: list[tuple[str, str]] = []
    for number in range(6):
        block = BlockHash(bytes([number]) * 32)
        node = (first, second)[number % 2]
        node.ring.turn([Happening("evicted", block, "red")])
        store(parts, block, BLUE)
        body = api.get("/v1/evictions", params={"after": after, "limit": 1}).json()
        after = body["after"]
        seen += [(event["where"], event["block"][:2]) for event in body["events"]]
    assert sorted(seen) == sorted(
        [("n1", "00"), ("n2", "01"), ("n1", "02"), ("n2", "03"), ("n1", "04"), ("n2", "05")]
        + [("redis", f"0{number}") for number in range(6)]
    )
    assert api.get("/v1/evictions", params={"after": after}).json()["events"] == []


def test_a_follower_goes_on_after_a_node_was_silent_for_a_while(
    parts: Parts, nodes: tuple[FakeNode, FakeNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.view.nodes_client.REST_S", 0.0)
    first, _ = nodes
    with parts.http() as api:
        after = api.get("/v1/evictions").json()["after"]
        first.ring.turn([Happening("evicted", A, "red")])
        first.broken = True
        body = api.get("/v1/evictions", params={"after": after}).json()
        assert [each["who"] for each in body["silent"]] == ["n1"]
        first.broken = False
        events = api.get("/v1/evictions", params={"after": body["after"]}).json()["events"]
        assert [event["block"] for event in events] == [A.hex()]


def packed(text: str) -> str:
    """A cursor as only others make it."""
    return base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()


def test_the_farthest_place_of_a_cursor_can_be_asked_for(api: TestClient, nodes: tuple[FakeNode, FakeNode]) -> None:
    after = packed(f'[{{"n1": {(1 << 63) - 1}}}, [[{(1 << 63) - 1}, 0]]]')
    assert api.get("/v1/evictions", params={"after": after}).status_code == 200


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ({"limit": 0}, 422, "limit"),
        ({"limit": 501}, 422, "limit"),
        ({"limit": "many"}, 422, "limit"),
        ({"what": "Evicted!"}, 422, "what"),
        ({"what": ["evicted"] * 17}, 422, "what"),
        ({"what": ["evicted", "evictd"]}, 422, "what"),
        ({"tenant": "no such name!"}, 422, "tenant"),
        ({"tenant": "nobody"}, 404, "tenant"),
        ({"node": "n9"}, 404, "node"),
        ({"after": "x"}, 422, "after"),
        ({"after": packed(f'[{{"n1": {1 << 63}}}, []]')}, 422, "after"),
        ({"after": packed(f'[{{"n1": {1 << 80}}}, []]')}, 422, "after"),
        ({"after": packed(f"[{{}}, [[0, {1 << 80}]]]")}, 422, "after"),
        ({"after": packed("[{}, [[-1, 0]]]")}, 422, "after"),
        ({"after": ""}, 422, "after"),
        ({"after": "AAAA"}, 422, "after"),
        ({"after": "eJwDAAAAAAE="}, 422, "after"),
        ({"after": "x" * 16_385}, 422, "after"),
        ({"after": "ä"}, 422, "after"),
    ],
)
def test_a_question_that_cannot_be_understood_names_its_field(
    api: TestClient, query: dict[str, object], status: int, field: str, nodes: tuple[FakeNode, FakeNode]
) -> None:
    answered, named, _ = error_of(api.get("/v1/evictions", params=query))  # type: ignore[arg-type]
    assert (answered, named.split(".")[0]) == (status, field)
