from __future__ import annotations

import threading

import pytest
import redis

from tiered.cluster.allotments import Allotments
from tiered.cluster.birth import Birth
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.cluster.tenants import RevisionMoved, Tenants, UnreadablePolicy
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import TenantId

RED = TenantId("red")


@pytest.fixture
def tenants(redis_client: redis.Redis, redis_keys: Keys) -> Tenants:
    return Tenants(redis_client, redis_keys)


def limits(client: redis.Redis, keys: Keys) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = command(client, "HGETALL", keys.limits())
    assert int(found.pop(b":deal")) > 0
    return found


def test_the_default_policy_exists_without_being_stored(tenants: Tenants) -> None:
    assert tenants.list() == [TenantPolicy(tenant="default")]
    assert tenants.get(DEFAULT_TENANT) == TenantPolicy(tenant="default")
    assert tenants.get(RED) is None
    assert not tenants.create(TenantPolicy(tenant="default"))
    assert tenants.revision() == 0


def test_a_tenant_is_created_once_replaced_and_deleted(tenants: Tenants) -> None:
    first, second = TenantPolicy(tenant="red", weight=2), TenantPolicy(tenant="red", weight=3)
    assert not tenants.replace(first)
    assert not tenants.delete(RED)
    assert tenants.create(first)
    assert not tenants.create(second)
    assert tenants.get(RED) == first
    assert tenants.replace(second)
    assert tenants.policies() == {DEFAULT_TENANT: TenantPolicy(tenant="default"), RED: second}
    assert tenants.delete(RED)
    assert tenants.get(RED) is None


def test_a_policy_is_stored_without_its_defaults_so_that_an_earlier_release_reads_it(
    tenants: Tenants, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    """Fields that it does not know are there only once somebody has used them."""
    tenants.create(TenantPolicy(tenant="red", weight=2))
    assert command(redis_client, "HGET", redis_keys.tenants(), RED) == b'{"tenant":"red","weight":2.0}'


def test_only_a_change_moves_the_revision(tenants: Tenants) -> None:
    revisions = [tenants.revision()]
    tenants.create(TenantPolicy(tenant="red"))
    revisions.append(tenants.revision())
    tenants.create(TenantPolicy(tenant="red"))
    revisions.append(tenants.revision())
    tenants.delete(RED)
    revisions.append(tenants.revision())
    assert revisions == [0, 1, 1, 2]


def test_a_change_upon_an_earlier_revision_is_not_made(tenants: Tenants) -> None:
    red, heavier = TenantPolicy(tenant="red"), TenantPolicy(tenant="red", weight=2)
    assert tenants.create(red, revision=0)
    assert not tenants.create(red, revision=1)
    for stale in (0, 2):
        with pytest.raises(RevisionMoved):
            tenants.replace(heavier, revision=stale)
        with pytest.raises(RevisionMoved):
            tenants.create(TenantPolicy(tenant="blue"), revision=stale)
    assert tenants.policies() == {DEFAULT_TENANT: TenantPolicy(tenant="default"), RED: red}
    assert tenants.revision() == 1
    assert tenants.replace(heavier, revision=1)
    assert tenants.replace(red)


@pytest.mark.parametrize("text", ['{"colour": 1}', "{", '{"tenant": "red", "weight": 0}', b"\xff"])
def test_a_policy_that_cannot_be_read_exists_and_can_be_replaced_or_deleted(
    tenants: Tenants, redis_client: redis.Redis, redis_keys: Keys, text: str | bytes
) -> None:
    command(redis_client, "HSET", redis_keys.tenants(), RED, text)
    assert tenants.exists(RED)
    with pytest.raises(UnreadablePolicy, match="the policy of tenant 'red' cannot be read: "):
        tenants.get(RED)
    assert not tenants.create(TenantPolicy(tenant="red"))
    assert tenants.replace(TenantPolicy(tenant="red", weight=2))
    assert tenants.get(RED) == TenantPolicy(tenant="red", weight=2)
    command(redis_client, "HSET", redis_keys.tenants(), RED, text)
    assert tenants.delete(RED)
    assert not tenants.exists(RED)
    assert tenants.exists(DEFAULT_TENANT)


def test_limits_follow_the_policy(tenants: Tenants, redis_client: redis.Redis, redis_keys: Keys) -> None:
    tenants.create(TenantPolicy(tenant="red", redis_limit_bytes=5, over_quota="refuse"))
    tenants.replace(TenantPolicy(tenant="default", redis_limit_bytes=9))
    tenants.set_capacity(100)
    assert tenants.capacity() == 100
    assert limits(redis_client, redis_keys) == {
        b"red": b"5",
        b"o:red": b"refuse",
        b"w:red": b"1.0",
        b"*": b"9",
        b"o:*": b"evict_own",
        b"w:*": b"1.0",
        b":capacity": b"100",
    }
    tenants.replace(TenantPolicy(tenant="red"))
    tenants.delete(DEFAULT_TENANT)
    tenants.set_capacity(None)
    assert tenants.capacity() is None
    assert limits(redis_client, redis_keys) == {b"o:red": b"evict_own", b"w:red": b"1.0"}


def test_of_many_creators_one_succeeds(tenants: Tenants) -> None:
    created: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda weight=weight: created.append(  # type: ignore[misc]
                tenants.create(TenantPolicy(tenant="red", weight=weight))
            )
        )
        for weight in range(1, 7)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(created) == [False] * 5 + [True]
    assert tenants.revision() == 1


def test_a_policy_that_cannot_be_read_is_named_and_costs_the_others_nothing(
    redis_client: redis.Redis, redis_keys: Keys
) -> None:
    tenants, allotments = Tenants(redis_client, redis_keys), Allotments(redis_client, redis_keys)
    tenants.create(TenantPolicy(tenant="blue", redis_limit_bytes=90))
    tenants.create(TenantPolicy(tenant="red", redis_limit_bytes=50))
    command(redis_client, "HSET", redis_keys.tenants(), "blue", '{"tenant": "blue", "colour": 7}')
    policies, unreadable = tenants.readable()
    assert set(policies) == {"default", "red"}
    assert set(unreadable) == {"blue"}
    assert "colour" in unreadable[TenantId("blue")]
    assert tenants.replace(TenantPolicy(tenant="red", redis_limit_bytes=40))
    assert not allotments.repair(), "and no round finds them amiss for ever"


def test_what_is_given_back_never_takes_the_place_of_what_is_there(
    redis_client: redis.Redis, redis_keys: Keys
) -> None:
    tenants = Tenants(redis_client, redis_keys)
    old = TenantPolicy(tenant="default", redis_limit_bytes=1)
    assert tenants.give_back([old], Birth()) == 1
    tenants.replace(TenantPolicy(tenant="default", redis_limit_bytes=2))
    revision = tenants.revision()
    assert tenants.give_back([old], Birth()) == 0
    assert tenants.give_back([], Birth()) == 0
    assert tenants.revision() == revision
    assert tenants.give_back([old, TenantPolicy(tenant="red"), TenantPolicy(tenant="blue")], Birth()) == 2
    assert tenants.revision() > revision
    found = tenants.get(TenantId("default"))
    assert found is not None
    assert found.redis_limit_bytes == 2
