"""The leader's rounds over policies of which one cannot be read, such as a later release's."""

from __future__ import annotations

import redis

from coordinator.leader.audit import QUIET_KEPT_S, AuditTask
from coordinator.leader.seconds import Seconds
from tests.support.redis_server import block_hash, eventually
from tiered.clock import ManualClock, SystemClock
from tiered.cluster.audit import Auditor
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.cluster.replicas import Replicas
from tiered.cluster.tenants import Tenants
from tiered.tenancy.policy import TenantPolicy
from tiered.types import TenantId

RED = TenantId("red")


def test_an_unreadable_policy_keeps_no_other_tenants_blocks_beyond_their_idle_time(
    redis_client: redis.Redis, redis_keys: Keys
) -> None:
    tenants, ledger = Tenants(redis_client, redis_keys), RedisLedger(redis_client, redis_keys)
    tenants.create(TenantPolicy(tenant="red", redis_ttl_s=1.0))
    command(redis_client, "HSET", redis_keys.tenants(), "blue", '{"tenant": "blue", "colour": 7}')
    block = block_hash("a")
    assert ledger.reserve([ReserveRequest(block, RED, 1, 0)], ttl_s=30)[0].reserved
    command(redis_client, "SET", redis_keys.block(block), b"x")
    assert ledger.commit([(block, RED, 1)]) == [True]
    task = AuditTask(Auditor(redis_client, redis_keys), tenants)

    def is_gone() -> bool:
        task.round()
        return ledger.total().blocks == 0

    eventually(is_gone)
    assert task.last is not None


def test_what_the_last_quiet_walk_found_is_not_told_for_ever(redis_client: redis.Redis, redis_keys: Keys) -> None:
    clock = ManualClock()
    task = AuditTask(Auditor(redis_client, redis_keys), Tenants(redis_client, redis_keys), clock)
    assert task.last_quiet is None
    while task.last is None:
        task.round()
    assert task.last_quiet is task.last
    clock.advance(QUIET_KEPT_S)
    assert task.last_quiet is None


def test_an_unreadable_policy_does_not_keep_a_sweep_from_knowing_who_asks_for_two_copies(
    redis_client: redis.Redis, redis_keys: Keys
) -> None:
    tenants = Tenants(redis_client, redis_keys)
    tenants.create(TenantPolicy(tenant="red", copies=2))
    command(redis_client, "HSET", redis_keys.tenants(), "blue", "{")
    replicas = Replicas(redis_client, redis_keys, SystemClock(), timeout_s=5.0)
    assert Seconds(tenants, replicas).asked().exceptions == {RED}
