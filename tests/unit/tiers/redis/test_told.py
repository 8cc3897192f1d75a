"""What the movers note of puts and of bad values, for who asks why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.redis_server import block_hash
from tests.unit.tiers.redis.test_tier import BYTES, RED, get, put
from tiered.cluster.connection import command, connect
from tiered.cluster.keys import Keys
from tiered.cluster.tenants import Tenants
from tiered.codec.frame import HEADER_BYTES
from tiered.config import RedisSettings
from tiered.core.why import WhyLog, happening_of
from tiered.tenancy.policy import TenantPolicy
from tiered.tiers.redis.tier import RedisTier

VALUE_BYTES = HEADER_BYTES + BYTES


@pytest.fixture
def log() -> WhyLog:
    return WhyLog()


@pytest.fixture
def tier(redis_settings: RedisSettings, log: WhyLog) -> Iterator[RedisTier]:
    with closing(RedisTier(redis_settings, why=log)) as tier:
        yield tier


@pytest.fixture
def tenants(redis_settings: RedisSettings) -> Iterator[Tenants]:
    with closing(connect(redis_settings, timeout_s=redis_settings.control_timeout_s)) as client:
        yield Tenants(client, Keys(redis_settings.namespace))


def told(log: WhyLog) -> list[tuple[str, bytes, object]]:
    happenings = [happening_of(entry) for entry in log.take()]
    assert all((h.tenant, h.tier, h.n_blocks) == (RED, "redis", 1) for h in happenings)
    return [(h.what, h.block_hash, h.detail["why"]) for h in happenings]


def test_each_put_is_told_with_what_became_of_it(tier: RedisTier, tenants: Tenants, log: WhyLog) -> None:
    tenants.create(TenantPolicy(tenant=RED, redis_limit_bytes=2 * VALUE_BYTES))
    put(tier, "a", "b")
    put(tier, "b")
    put(tier, "c")
    assert told(log) == [
        ("stored", block_hash("a"), "there was room"),
        ("stored", block_hash("b"), "there was room"),
        ("there", block_hash("b"), "already"),
        ("stored", block_hash("c"), "after evicting own"),
    ]
    tenants.replace(TenantPolicy(tenant=RED, redis_limit_bytes=VALUE_BYTES - 1))
    put(tier, "d")
    tenants.replace(TenantPolicy(tenant=RED))
    tenants.set_capacity(VALUE_BYTES - 1)
    put(tier, "e")
    assert told(log) == [("refused", block_hash("d"), "quota"), ("refused", block_hash("e"), "full")]


def test_a_bad_value_is_told_with_what_was_wrong_and_one_that_is_absent_is_not(
    tier: RedisTier, redis_settings: RedisSettings, log: WhyLog
) -> None:
    put(tier, "corrupt", "short", "good")
    log.take()
    keys = Keys(redis_settings.namespace)
    with closing(connect(redis_settings, timeout_s=5.0)) as client:
        command(client, "SETRANGE", keys.block(block_hash("corrupt")), VALUE_BYTES - 8, bytes(8))
        command(client, "SET", keys.block(block_hash("short")), b"x")
    assert get(tier, "corrupt", "short", "good", "absent") == [False, False, True, False]
    assert told(log) == [("corrupt", block_hash("corrupt"), "checksum"), ("corrupt", block_hash("short"), "length")]


def test_a_redis_that_is_away_is_told_as_a_failure_of_puts_alone(log: WhyLog) -> None:
    away = RedisSettings(url="redis://127.0.0.1:1", namespace="away", control_timeout_s=0.2)
    with closing(RedisTier(away, why=log)) as tier:
        put(tier, "a")
        get(tier, "a")
    assert told(log) == [("failed", block_hash("a"), "Redis did not answer in time")]
