from __future__ import annotations

import pytest
import redis

from tiered.cluster.agreement import keys_in_use, keys_of, require_agreement
from tiered.cluster.allotments import Allotments
from tiered.cluster.connection import command
from tiered.cluster.keys import SCHEMA_VERSION, Keys, partition_of
from tiered.config import RedisSettings
from tiered.errors import ConfigError
from tiered.types import BlockHash


def test_who_comes_first_says_how_many_partitions_there_are(
    redis_client: redis.Redis, redis_settings: RedisSettings
) -> None:
    four = redis_settings.model_copy(update={"partitions": 4})
    assert keys_in_use(redis_client, four.namespace) == Keys(four.namespace)
    assert require_agreement(redis_client, four) == keys_in_use(redis_client, four.namespace) == keys_of(four)
    with pytest.raises(
        ConfigError, match=r"redis\.partitions: 1 is not what .* which is 4; set redis\.partitions to 4"
    ):
        require_agreement(redis_client, redis_settings)


def test_a_server_that_lost_everything_is_told_again_by_the_next_round(
    redis_client: redis.Redis, redis_settings: RedisSettings
) -> None:
    four = redis_settings.model_copy(update={"partitions": 4})
    keys = require_agreement(redis_client, four)
    command(redis_client, "DEL", keys.shape())
    Allotments(redis_client, keys).repair()
    assert keys_in_use(redis_client, four.namespace).partitions == 4
    assert command(redis_client, "HGET", keys.shape(), "schema") == b"1"


def test_keys_of_another_version_are_left_alone_and_both_are_named(
    redis_client: redis.Redis, redis_settings: RedisSettings
) -> None:
    keys = require_agreement(redis_client, redis_settings)
    command(redis_client, "HSET", keys.shape(), "schema", SCHEMA_VERSION + 1)
    before = command(redis_client, "HGETALL", keys.shape())
    with pytest.raises(
        ConfigError, match=rf"redis\.namespace: .* are of version {SCHEMA_VERSION + 1}, this one's .* 1;"
    ):
        require_agreement(redis_client, redis_settings)
    assert command(redis_client, "HGETALL", keys.shape()) == before


def test_a_namespace_that_says_nothing_of_its_version_has_the_first(
    redis_client: redis.Redis, redis_settings: RedisSettings
) -> None:
    command(redis_client, "HSET", Keys(redis_settings.namespace).shape(), "partitions", 1)
    keys = require_agreement(redis_client, redis_settings)
    assert command(redis_client, "HGET", keys.shape(), "schema") == b"1"


@pytest.mark.parametrize("partitions", [1, 2, 8, 256])
def test_every_partition_gets_its_part_of_all_hashes(partitions: int) -> None:
    hashes = [BlockHash(bytes([first]) + bytes(31)) for first in range(256)]
    found = [partition_of(block_hash, partitions) for block_hash in hashes]
    assert {found.count(partition) for partition in range(partitions)} == {256 // partitions}
    keys = Keys("n", partitions=partitions)
    assert [keys.of(h).partition for h in hashes] == found
    assert len({part.usage() for part in keys.every()}) == partitions
