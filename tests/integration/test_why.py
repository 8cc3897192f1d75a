"""The life of one block over two real workers, told afterwards by those that saw it, in order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from fastapi.testclient import TestClient

from coordinator.app import Coordinator
from coordinator.settings import Settings
from tests.support.content import LAYOUT, TENANT, hashes_of, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.client.remote import RemoteClient
from tiered.cluster.why import BooksWhy
from tiered.types import BlockHash, Source, TenantId

OTHER = TenantId("beta")
POOL_BLOCKS = 8
SETTINGS = (
    "pool.policy=lru",
    "pool.free_target=0",
    "cluster.secret=s3",
    "cluster.heartbeat_s=0.1",
    "cluster.announce_interval_s=0.01",
    "journal.mode=off",
)
TOKENS = prompt(1, 1)
[BLOCK] = hashes_of(TOKENS)


@pytest.fixture
def two(cluster: SmallCluster) -> SmallCluster:
    """w1 and w2, each with a pool that the other tenant was promised whole."""
    cluster.set_policy(OTHER, hot_reserved_bytes=POOL_BLOCKS * LAYOUT.block_bytes)
    cluster.start("w1", "w2", hot=str(POOL_BLOCKS * LAYOUT.block_bytes), settings=SETTINGS)
    cluster.wait_acquainted()
    return cluster


@contextmanager
def coordinator(cluster: SmallCluster, *, secret: str = "s3") -> Iterator[TestClient]:
    """One in this process, over the cluster's own Redis and workers; nothing of it runs by itself."""
    settings = Settings.model_validate(
        {"redis": {"url": cluster.server.url, "namespace": cluster.namespace}, "cluster": {"secret": secret}}
    )
    built = Coordinator(settings, cluster.client)
    built.keeper.refresh()
    with closing(built.explainer), TestClient(built.api, base_url="http://127.0.0.1:8080") as api:
        yield api


def crowd_out(client: RemoteClient) -> None:
    """The other tenant takes the whole pool; seeds of its own on each worker, so that nothing is shared."""
    seed = time.monotonic_ns() % 1_000_000 + 10
    assert save(client, prompt(seed, POOL_BLOCKS), tenant=OTHER).n_stored == POOL_BLOCKS


def in_redis(cluster: SmallCluster) -> bool:
    return BooksWhy(cluster.client, cluster.keys).found(BLOCK).is_stored


def history(api: TestClient, block: BlockHash = BLOCK) -> list[tuple[str, str]]:
    body = api.get(f"/v1/blocks/{block.hex()}/why").json()
    assert body["silent"] == []
    return [(event["where"], event["what"]) for event in body["history"] if event["what"] != "planned"]


def test_the_life_of_a_block_is_told_in_order_by_those_that_saw_it(two: SmallCluster) -> None:
    with two.attach("w1") as first, two.attach("w2") as second, coordinator(two) as api:
        save(first, TOKENS)
        two.wait_announced("w1", 1)
        [node] = api.get(f"/v1/blocks/{BLOCK.hex()}").json()["nodes"]
        assert (node["node"], node["state"], node["tenants"]) == ("w1", "ready", [TENANT])

        crowd_out(first)
        until(lambda: in_redis(two), "the block is in Redis")
        two.wait_announced("w1", POOL_BLOCKS)
        assert take(second, TOKENS) == Counter({Source.REDIS: 1})
        crowd_out(second)
        two.wait_announced("w2", POOL_BLOCKS)
        until(lambda: ("w2", "there") in history(api), "the second copy found the first one there")

        key = two.keys.block(BLOCK)
        value = two.client.get(key)
        assert value is not None
        two.client.setrange(key, len(value) - 1, bytes([value[-1] ^ 1]))
        two.set_policy(OTHER, hot_limit_bytes=(POOL_BLOCKS - 1) * LAYOUT.block_bytes)
        until(lambda: two.blocks("w1")["free"], "there is room on w1 again")
        assert take(first, TOKENS) == Counter()
        until(lambda: ("w1", "missed") in history(api), "the miss is told")

        assert history(api) == [
            ("w1", "stored"),
            ("w1", "evicted"),
            ("w1", "demoted"),
            ("w1", "stored"),
            ("w2", "fetched"),
            ("w2", "evicted"),
            ("w2", "demoted"),
            ("w2", "there"),
            ("w1", "corrupt"),
            ("redis", "removed"),
            ("w1", "missed"),
        ]
        events = api.get(f"/v1/blocks/{BLOCK.hex()}/why").json()["history"]
        evicted = next(event for event in events if event["what"] == "evicted")
        assert (evicted["tenant"], evicted["detail"]["for_tenant"], evicted["detail"]["why"]) == (
            TENANT,
            OTHER,
            "room",
        )
        assert evicted["detail"]["used"] == LAYOUT.block_bytes
        assert evicted["detail"]["for_reserved"] == POOL_BLOCKS * LAYOUT.block_bytes
        assert f"so that {OTHER} could have the room" in evicted["sentence"]
        assert "lru chose it first" in evicted["sentence"]
        removed = next(event for event in events if event["what"] == "removed")
        assert removed["sentence"].startswith("removed from Redis: found corrupt or lost")
        assert api.get(f"/v1/blocks/{BLOCK.hex()}").status_code == 404


def test_who_follows_sees_an_eviction_within_a_moment(two: SmallCluster) -> None:
    with two.attach("w1") as first, coordinator(two) as api:
        save(first, TOKENS)
        after = api.get("/v1/evictions").json()["after"]
        crowd_out(first)
        seen: list[str] = []

        def told() -> bool:
            nonlocal after
            body = api.get("/v1/evictions", params={"after": after, "tenant": TENANT}).json()
            after = body["after"]
            seen.extend(event["block"] for event in body["events"] if event["what"] == "evicted")
            return BLOCK.hex() in seen

        until(told, "the eviction is told")
        assert seen == [BLOCK.hex()]


def test_a_worker_that_is_paused_is_named_and_the_other_still_answers(two: SmallCluster) -> None:
    with two.attach("w1") as first, coordinator(two) as api:
        save(first, TOKENS)
        two.workers["w2"].pause()
        try:
            began = time.monotonic()
            body = api.get(f"/v1/blocks/{BLOCK.hex()}/why").json()
            assert time.monotonic() - began < 5.0
        finally:
            two.workers["w2"].go_on()
        assert [each["who"] for each in body["silent"]] == ["w2"]
        assert [(event["where"], event["what"]) for event in body["history"]] == [("w1", "stored")]


def test_a_coordinator_without_the_secret_learns_nothing_from_the_workers(two: SmallCluster) -> None:
    with two.attach("w1") as first, coordinator(two, secret="") as api:
        save(first, TOKENS)
        two.wait_announced("w1", 1)
        body = api.get(f"/v1/blocks/{BLOCK.hex()}/why").json()
        assert body["history"] == []
        assert sorted(each["who"] for each in body["silent"]) == ["w1", "w2"]
        assert all("cluster.secret" in each["reason"] for each in body["silent"])
        assert [node["state"] for node in body["nodes"]] == ["unknown"]
