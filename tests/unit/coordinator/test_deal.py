from __future__ import annotations

import redis

from coordinator.leader.deal import DealTask
from tiered.cluster import scripts
from tiered.cluster.allotments import Allotments
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.tenancy.policy import TenantPolicy
from tiered.types import TenantId


def test_a_round_brings_the_bounds_that_a_dead_writer_did_not(redis_client: redis.Redis, redis_keys: Keys) -> None:
    keys = Keys(redis_keys.namespace, partitions=2)
    text = TenantPolicy(tenant="red", redis_limit_bytes=7).model_dump_json()
    scripts.change_policy(redis_client, keys, TenantId("red"), how="create", policy=text)
    task = DealTask(Allotments(redis_client, keys))
    for _ in range(2):
        task.round()
    assert [command(redis_client, "HGET", part.limits(), "red") for part in keys.every()] == [b"4", b"3"]
