from __future__ import annotations

import threading

import pytest
import redis

from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.cluster.tenants import Tenants
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


def test_only_a_change_moves_the_revision(tenants: Tenants) -> None:
    revisions = [tenants.revision()]
    tenants.create(TenantPolicy(tenant="red"))
    revisions.append(tenants.revision())
    tenants.create(TenantPolicy(tenant="red"))
    revisions.append(tenants.revision())
    tenants.delete(RED)
    revisions.append(tenants.revision())
    assert revisions == [0, 1, 1, 2]


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
