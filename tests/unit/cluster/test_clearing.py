from __future__ import annotations

import pytest
import redis

from tests.support.redis_server import block_hash
from tiered.cluster.clearing import clear_prefix, clear_scope
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.codec.frame import BlockHeader, encode_header
from tiered.types import NO_HASH, BlockHash, TenantId

RED = TenantId("red")


@pytest.fixture(params=[1, 4])
def keys(request: pytest.FixtureRequest, redis_keys: Keys) -> Keys:
    return Keys(redis_keys.namespace, partitions=request.param)


def store(
    client: redis.Redis, keys: Keys, names: list[str], *, under: str | None = None, scope: bytes = b"s"
) -> None:
    """A chain of blocks, each value with a header."""
    ledger, parent = RedisLedger(client, keys), NO_HASH if under is None else block_hash(under)
    for depth, name in enumerate(names):
        own = block_hash(name)
        value = encode_header(BlockHeader(own, scope * 32, "none", 1, 1, bytes(16))) + b"x"
        assert ledger.reserve([ReserveRequest(own, RED, len(value), depth, parent)], ttl_s=30)[0].reserved
        command(client, "SET", keys.of(own).block(own), value)
        assert ledger.commit([(own, RED, len(value))]) == [True]
        parent = own


def left(client: redis.Redis, keys: Keys, *names: str) -> list[str]:
    def is_there(block: BlockHash) -> bool:
        return bool(command(client, "EXISTS", keys.of(block).block(block)))

    return [name for name in names if is_there(block_hash(name))]


def test_a_prefix_goes_with_all_that_hangs_on_it_and_nothing_else(redis_client: redis.Redis, keys: Keys) -> None:
    store(redis_client, keys, ["a", "b", "c"])
    store(redis_client, keys, ["b1", "b2"], under="b")
    store(redis_client, keys, ["other"])
    assert clear_prefix(redis_client, keys, block_hash("b")) == 4
    assert left(redis_client, keys, "a", "b", "c", "b1", "b2", "other") == ["a", "other"]
    assert clear_prefix(redis_client, keys, block_hash("b")) == 0


def test_a_scope_goes_and_others_stay(redis_client: redis.Redis, keys: Keys) -> None:
    store(redis_client, keys, ["a", "b"], scope=b"s")
    store(redis_client, keys, ["c"], scope=b"t")
    stray = keys.every()[0].block(block_hash("no value at all"))
    command(redis_client, "SET", stray, b"junk")
    assert clear_scope(redis_client, keys, b"s" * 32) == 2
    assert left(redis_client, keys, "a", "b", "c") == ["c"]
    assert sum(usage.blocks for usage in RedisLedger(redis_client, keys).usage().values()) == 1
