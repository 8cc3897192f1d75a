from __future__ import annotations

import pytest
import redis

from coordinator.leader.remember import RememberTask
from tests.support.redis_server import settings_for
from tiered.cluster.connection import command, connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveAnswer, ReserveRequest
from tiered.cluster.tenants import Tenants
from tiered.tenancy.policy import TenantPolicy
from tiered.types import BlockHash, TenantId

RED = TenantPolicy(tenant="red", redis_limit_bytes=100, weight=2.0)
DEFAULT = TenantPolicy(tenant="default", redis_limit_bytes=50)


@pytest.fixture
def keys() -> Keys:
    return Keys("t")


@pytest.fixture
def client(private_redis_server: EmbeddedServer) -> redis.Redis:
    return connect(settings_for(private_redis_server), timeout_s=5.0)  # type: ignore[return-value]


def test_a_flushed_redis_gets_its_policies_back_and_their_limits_hold(client: redis.Redis, keys: Keys) -> None:
    tenants, task = Tenants(client, keys), RememberTask(Tenants(client, keys))
    tenants.create(RED)
    tenants.replace(DEFAULT)
    tenants.set_capacity(1_000)
    task.round()
    command(client, "FLUSHALL")
    task.round()
    assert tenants.list() == [DEFAULT, RED]
    assert tenants.capacity() == 1_000
    asked = ReserveRequest(BlockHash(bytes(32)), TenantId("red"), 101, 0)
    assert RedisLedger(client, keys).reserve([asked], ttl_s=1) == [ReserveAnswer.REFUSED_QUOTA]
    client.close()


def test_what_was_changed_or_deleted_since_stays_as_it_is(client: redis.Redis, keys: Keys) -> None:
    tenants, task = Tenants(client, keys), RememberTask(Tenants(client, keys))
    tenants.create(RED)
    task.round()
    tenants.delete(TenantId("red"))
    for _ in range(2):
        task.round()
    assert [policy.tenant for policy in tenants.list()] == ["default"]
    client.close()


def test_a_redis_that_never_had_any_is_left_alone(client: redis.Redis, keys: Keys) -> None:
    task = RememberTask(Tenants(client, keys))
    for _ in range(2):
        task.round()
    assert command(client, "DBSIZE") == 0
    client.close()


def test_a_replica_that_does_not_lead_gives_back_a_round_later_if_nobody_has(client: redis.Redis, keys: Keys) -> None:
    """Who leads after the server lost everything may have started a moment ago, and remember nothing."""
    tenants = Tenants(client, keys)
    follower, fresh = RememberTask(tenants, leads=lambda: False), RememberTask(tenants, leads=lambda: True)
    tenants.create(RED)
    follower.round()
    command(client, "FLUSHALL")
    fresh.round()
    follower.round()
    assert tenants.get(TenantId("red")) is None
    follower.round()
    assert tenants.get(TenantId("red")) == RED
    client.close()
