from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from coordinator.leader.remember import RememberTask
from tests.support.redis_server import settings_for
from tiered.cluster.birth import Birth, Births
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


def remembering(client: redis.Redis, keys: Keys, *, leads: bool = True) -> RememberTask:
    return RememberTask(Tenants(client, keys), Births(client, keys), leads=lambda: leads)


def test_a_flushed_redis_gets_its_policies_back_and_their_limits_hold(client: redis.Redis, keys: Keys) -> None:
    tenants, task = Tenants(client, keys), remembering(client, keys)
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


BLUE = TenantPolicy(tenant="blue", redis_limit_bytes=7)
GREEN = TenantPolicy(tenant="green")


@pytest.mark.parametrize(
    "change",
    [
        lambda tenants: tenants.set_capacity(2_000),  # as who started the server does at once
        lambda tenants: tenants.create(BLUE),
        lambda tenants: [tenants.create(one) for one in (BLUE, GREEN)],  # the revision is then the one remembered
        lambda tenants: [tenants.set_capacity(2_000) for _ in range(9)],
    ],
)
def test_what_was_changed_in_the_empty_server_before_that_keeps_nothing_from_coming_back(
    client: redis.Redis, keys: Keys, change: Callable[[Tenants], object]
) -> None:
    tenants, task = Tenants(client, keys), remembering(client, keys)
    tenants.create(RED)
    tenants.replace(DEFAULT)
    task.round()
    command(client, "FLUSHALL")
    change(tenants)
    new = {policy.tenant for policy in tenants.list()} - {"default"}
    task.round()
    assert {policy.tenant for policy in tenants.list()} == new | {"default", "red"}
    assert [tenants.get(TenantId(one.tenant)) for one in (DEFAULT, RED)] == [DEFAULT, RED]
    client.close()


def test_a_revision_that_was_known_before_the_loss_does_not_return(client: redis.Redis, keys: Keys) -> None:
    """Workers read the policies when it has changed."""
    tenants, task = Tenants(client, keys), remembering(client, keys)
    tenants.create(RED)
    tenants.create(GREEN)
    task.round()
    known = tenants.revision()
    command(client, "FLUSHALL")
    tenants.create(BLUE)
    task.round()
    assert tenants.revision() > known
    client.close()


def test_a_policy_deleted_after_it_was_given_back_does_not_come_back_by_another_replica(
    client: redis.Redis, keys: Keys
) -> None:
    tenants, leader, other = Tenants(client, keys), remembering(client, keys), remembering(client, keys, leads=False)
    tenants.create(RED)
    for task in (leader, other):
        task.round()
    for n_losses in range(1, 4):  # cut off for all of them, the other one remembers what was before the first
        command(client, "FLUSHALL")
        leader.round()
        assert tenants.get(TenantId("red")) == RED
        if n_losses < 3:
            leader.round()
    tenants.delete(TenantId("red"))
    for _ in range(3):
        other.round()
        leader.round()
    assert [policy.tenant for policy in tenants.list()] == ["default"]
    client.close()


def test_books_that_went_back_a_little_are_taken_as_they_are(client: redis.Redis, keys: Keys) -> None:
    """As a failover leaves them: what was deleted in them meanwhile must not come back."""
    tenants, task = Tenants(client, keys), remembering(client, keys)
    tenants.create(RED)
    tenants.create(BLUE)
    task.round()
    command(client, "HDEL", keys.tenants(), "blue")
    command(client, "SET", keys.tenants_revision(), 1)
    for _ in range(2):
        task.round()
    assert [policy.tenant for policy in tenants.list()] == ["default", "red"]
    client.close()


def test_a_snapshot_from_before_the_first_policy_is_a_loss(client: redis.Redis, keys: Keys) -> None:
    tenants, task = Tenants(client, keys), remembering(client, keys)
    tenants.set_capacity(None)  # which deals, so that the books have a birth
    born = Births(client, keys).read()
    tenants.create(RED)
    task.round()
    for key in (keys.tenants(), keys.tenants_revision()):
        command(client, "DEL", key)
    assert Births(client, keys).read() == born
    task.round()
    assert tenants.get(TenantId("red")) == RED
    tenants.delete(TenantId("red"))
    task.round()
    assert [policy.tenant for policy in tenants.list()] == ["default"]
    client.close()


def test_what_is_read_while_the_server_loses_all_is_not_taken_for_what_it_had(
    client: redis.Redis, keys: Keys
) -> None:
    class LosesAll(Births):
        armed = False

        def read(self) -> Birth:
            found = super().read()
            if self.armed:
                self.armed = False
                command(client, "FLUSHALL")
            return found

    tenants, births = Tenants(client, keys), LosesAll(client, keys)
    task = RememberTask(tenants, births)
    tenants.create(RED)
    task.round()
    births.armed = True
    for _ in range(2):
        task.round()
    assert tenants.get(TenantId("red")) == RED
    client.close()


def test_what_was_changed_or_deleted_since_stays_as_it_is(client: redis.Redis, keys: Keys) -> None:
    tenants, task = Tenants(client, keys), remembering(client, keys)
    tenants.create(RED)
    task.round()
    tenants.delete(TenantId("red"))
    for _ in range(2):
        task.round()
    assert [policy.tenant for policy in tenants.list()] == ["default"]
    client.close()


def test_a_redis_that_never_had_any_is_left_alone(client: redis.Redis, keys: Keys) -> None:
    task = remembering(client, keys)
    for _ in range(2):
        task.round()
    assert command(client, "DBSIZE") == 0
    client.close()


def test_a_replica_that_does_not_lead_gives_back_a_round_later_if_nobody_has(client: redis.Redis, keys: Keys) -> None:
    """Who leads after the server lost everything may have started a moment ago, and remember nothing."""
    tenants = Tenants(client, keys)
    follower, fresh = remembering(client, keys, leads=False), remembering(client, keys)
    tenants.create(RED)
    follower.round()
    command(client, "FLUSHALL")
    fresh.round()
    follower.round()
    assert tenants.get(TenantId("red")) is None
    follower.round()
    assert tenants.get(TenantId("red")) == RED
    client.close()
