from __future__ import annotations

import pytest
import redis

from tests.support.redis_server import block_hash, eventually
from tiered.cluster.audit import Auditor
from tiered.cluster.connection import command
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.types import NO_HASH, BlockHash, Epoch, NodeId, TenantId

RED, BLUE = TenantId("red"), TenantId("blue")
SIZE = 10


@pytest.fixture
def ledger(redis_client: redis.Redis, redis_keys: Keys) -> RedisLedger:
    return RedisLedger(redis_client, redis_keys)


def store(client: redis.Redis, keys: Keys, ledger: RedisLedger, names: list[str], tenant: TenantId = RED) -> None:
    """A chain of blocks."""
    hashes = [block_hash(name) for name in names]
    parents = [NO_HASH, *hashes]
    asked = [ReserveRequest(h, tenant, SIZE, d, parents[d]) for d, h in enumerate(hashes)]
    assert all(answer.reserved for answer in ledger.reserve(asked, ttl_s=30))
    for h in hashes:
        command(client, "SET", keys.block(h), b"x" * SIZE)
    assert all(ledger.commit([(h, tenant, SIZE) for h in hashes]))


def test_a_tier_in_order_is_conserved_to_the_byte_and_loses_nothing(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    store(redis_client, redis_keys, ledger, [f"a{i}" for i in range(300)])
    store(redis_client, redis_keys, ledger, [f"b{i}" for i in range(7)], BLUE)
    ledger.touch([block_hash(f"a{i}") for i in range(3)], BLUE)
    auditor = Auditor(redis_client, redis_keys)
    for _ in range(2):
        findings = auditor.walk()
        assert findings.conserved
        assert (findings.blocks, findings.stored_bytes) == (307, 307 * SIZE)
        assert (findings.expired, findings.lost, findings.stray, findings.relisted, findings.orphans) == (0,) * 5
    assert sum(findings.charged.values()) == 307 * SIZE
    assert findings.charged[BLUE] == 7 * SIZE + 3 * (SIZE // 2)


def test_an_empty_tier_is_conserved(redis_client: redis.Redis, redis_keys: Keys) -> None:
    assert Auditor(redis_client, redis_keys).walk().conserved


def test_what_the_server_lost_is_found_and_settled(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    names = [f"p{i}" for i in range(4)]
    store(redis_client, redis_keys, ledger, names)
    command(redis_client, "DEL", redis_keys.block(block_hash("p3")))
    command(redis_client, "SET", redis_keys.block(block_hash("stray")), b"y")
    looking = Auditor(redis_client, redis_keys, settle=False).walk()
    assert (looking.lost, looking.stray, looking.conserved) == (1, 1, False)
    assert command(redis_client, "EXISTS", redis_keys.block(block_hash("stray"))) == 1
    settling = Auditor(redis_client, redis_keys)
    assert (settling.walk().lost, settling.walk().conserved) == (1, True)
    assert command(redis_client, "EXISTS", redis_keys.block(block_hash("stray"))) == 0
    assert ledger.total().used_bytes == 3 * SIZE


def test_a_book_that_says_too_much_is_not_conserved(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    store(redis_client, redis_keys, ledger, ["a"])
    command(redis_client, "HINCRBY", redis_keys.usage(), "u:red", 1)
    assert Auditor(redis_client, redis_keys).walk().conserved is False


def test_an_orphan_goes_with_the_second_walk_that_sees_it(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    store(redis_client, redis_keys, ledger, ["p0", "p1", "p2"])
    ledger.remove([block_hash("p0")])
    auditor = Auditor(redis_client, redis_keys)
    left = []
    for _ in range(4):
        assert auditor.walk().orphans <= 1
        left.append(ledger.total().blocks)
    assert left == [2, 1, 1, 0]


def test_a_block_whose_prefix_is_hot_somewhere_is_no_orphan(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    store(redis_client, redis_keys, ledger, ["p0", "p1"])
    Directory(redis_client, redis_keys).announce(NodeId("n"), Epoch(1), stored=[block_hash("p0")], removed=[])
    ledger.remove([block_hash("p0")])
    auditor = Auditor(redis_client, redis_keys)
    assert [auditor.walk().orphans for _ in range(3)] == [0, 0, 0]


def test_idle_blocks_go_by_their_tenants_time(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    store(redis_client, redis_keys, ledger, ["red"])
    store(redis_client, redis_keys, ledger, ["blue"], BLUE)
    auditor = Auditor(redis_client, redis_keys)
    eventually(lambda: auditor.walk({RED: 0.05}).idle == 1)
    assert set(ledger.usage()) == {BLUE}


def test_keys_of_other_namespaces_are_left_alone(redis_client: redis.Redis, redis_keys: Keys) -> None:
    foreign = Keys(namespace=f"{redis_keys.namespace}x").block(BlockHash(bytes(32)))
    command(redis_client, "SET", foreign, b"theirs")
    Auditor(redis_client, redis_keys).walk()
    assert command(redis_client, "GET", foreign) == b"theirs"
