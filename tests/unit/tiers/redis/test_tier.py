from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.support.redis_server import block_hash, settings_for
from tiered.clock import ManualClock
from tiered.cluster.connection import command, connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, RedisUsage
from tiered.cluster.tenants import Tenants
from tiered.codec.frame import HEADER_BYTES, checksum_of
from tiered.config import RedisSettings
from tiered.errors import TierError, TierTimeout, TierUnavailable
from tiered.layout import KvLayout
from tiered.tenancy.policy import TenantPolicy
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.counting import Asked
from tiered.tiers.redis.tier import RedisTier, ToStore, Wanted
from tiered.types import NOWHERE, TenantId, Whereabouts

RED, BLUE = TenantId("red"), TenantId("blue")
SCOPE = b"s" * 32
LAYOUT = KvLayout(n_layers=5, n_kv_heads=5, head_dim=25, dtype="uint8", block_tokens=16)
BYTES = LAYOUT.block_bytes
VALUE_BYTES = HEADER_BYTES + BYTES


@pytest.fixture
def tier(redis_settings: RedisSettings) -> Iterator[RedisTier]:
    tier = RedisTier(redis_settings)
    yield tier
    tier.close()


def payload(name: object) -> memoryview:
    return memoryview(random.Random(str(name)).randbytes(BYTES))


def put(tier: RedisTier, *names: object, tenant: TenantId = RED) -> list[PutAnswer]:
    blocks = [ToStore(block_hash(n), tenant, depth, payload(n), None) for depth, n in enumerate(names)]
    return tier.put(blocks, scope_id=SCOPE, layout=LAYOUT)


def get(tier: RedisTier, *names: object, scope_id: bytes = SCOPE) -> list[bool]:
    """Which were hits; each hit has the right checksum and the right bytes."""
    wanted = [Wanted(block_hash(name), memoryview(bytearray(BYTES))) for name in names]
    checksums = tier.get(wanted, scope_id=scope_id, tenant=RED, layout=LAYOUT)
    for name, item, checksum in zip(names, wanted, checksums, strict=True):
        if checksum is not None:
            assert item.out == payload(name)
            assert checksum == checksum_of(payload(name))
    return [checksum is not None for checksum in checksums]


def test_every_call_is_timed_by_what_it_was_for(tier: RedisTier) -> None:
    put(tier, "a", "b")
    get(tier, "a", "b", "c")
    tier.lookup([block_hash("a")])
    counters = tier.counters()
    calls = {asked: took.n for asked, took in counters.took.items()}
    assert calls == {Asked.LOOKUP: 1, Asked.GET: 1, Asked.PUT: 1, Asked.CONTROL: 4}  # reserve, commit; remove, touch
    assert all(took.sum_s > 0 for took in counters.took.values())
    assert counters.failed == dict.fromkeys(Asked, 0)
    put(tier, "a")  # it is there: nothing is written, and nothing committed
    assert tier.counters().took[Asked.PUT].n == 1
    assert tier.counters().took[Asked.CONTROL].n == 5


def test_blocks_come_back_bit_equal_and_are_found(tier: RedisTier) -> None:
    assert put(tier, *range(20)) == [PutAnswer.STORED] * 20
    assert put(tier, 0, "new") == [PutAnswer.ALREADY_THERE, PutAnswer.STORED]
    assert get(tier, *range(20), "other") == [True] * 20 + [False]
    assert tier.lookup([block_hash(0), block_hash("other")]) == [Whereabouts(True, VALUE_BYTES, ()), NOWHERE]
    counters = tier.counters()
    assert (counters.hits, counters.misses) == (20, {"absent": 1})
    assert counters.puts == {PutAnswer.STORED: 21, PutAnswer.ALREADY_THERE: 1}
    assert (counters.bytes_read, counters.bytes_written) == (20 * BYTES, 21 * BYTES)
    assert not counters.breaker_open


def test_nothing_asked_is_nothing_done(tier: RedisTier) -> None:
    assert tier.get([], scope_id=SCOPE, tenant=RED, layout=LAYOUT) == []
    assert tier.put([], scope_id=SCOPE, layout=LAYOUT) == []
    assert tier.lookup([]) == []


def test_buffers_of_any_element_type_are_filled(tier: RedisTier) -> None:
    put(tier, "a")
    out = memoryview(bytearray(BYTES)).cast("H")
    assert tier.get([Wanted(block_hash("a"), out)], scope_id=SCOPE, tenant=RED, layout=LAYOUT)[0] is not None
    assert out.cast("B") == payload("a")


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (0, "magic"),
        (6, "header"),
        (20, None),
        (HEADER_BYTES - 1, "header"),
        (HEADER_BYTES, "checksum"),
        (VALUE_BYTES - 1, "checksum"),
    ],
)
def test_a_changed_byte_anywhere_is_a_miss_counted_and_removed(
    tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys, offset: int, reason: str | None
) -> None:
    put(tier, "a", "b", "c")
    key = redis_keys.block(block_hash("b"))
    byte = command(redis_client, "GETRANGE", key, offset, offset)[0]
    command(redis_client, "SETRANGE", key, offset, bytes([byte ^ 0x40]))
    assert get(tier, "a", "b", "c") == [True, False, True]
    assert sum(tier.counters().misses.values()) == 1
    assert reason is None or tier.counters().misses == {reason: 1}
    assert tier.lookup([block_hash("b")]) == [NOWHERE]
    assert RedisLedger(redis_client, redis_keys).usage() == {RED: RedisUsage(2 * VALUE_BYTES, 0, 2)}
    assert command(redis_client, "EXISTS", key) == 0
    assert put(tier, "b") == [PutAnswer.STORED]
    assert get(tier, "b") == [True]


@pytest.mark.parametrize("what", ["version", "codec"])
def test_what_a_later_release_wrote_is_a_miss_counted_and_stays(
    tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys, what: str
) -> None:
    """Its readers are there, or will be again: who removed it would empty the cache while releases change."""
    put(tier, "a", "b", "c")
    key = redis_keys.block(block_hash("b"))
    value: bytes = command(redis_client, "GET", key)
    changed = value[:4] + b"\x02" + value[5:] if what == "version" else value.replace(b"none", b"newe")
    command(redis_client, "SET", key, changed)
    assert get(tier, "a", "b", "c") == [True, False, True]
    assert tier.counters().misses == {"version": 1}
    assert command(redis_client, "GET", key) == changed
    assert [each.in_redis for each in tier.lookup([block_hash("b")])] == [True]
    assert RedisLedger(redis_client, redis_keys).usage() == {RED: RedisUsage(3 * VALUE_BYTES, 0, 3)}
    assert put(tier, "b") == [PutAnswer.ALREADY_THERE]
    command(redis_client, "SET", key, value)
    assert get(tier, "b") == [True]


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES, VALUE_BYTES - 1, VALUE_BYTES + 1])
def test_a_value_of_a_wrong_length_is_a_miss_and_removed(
    tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys, length: int
) -> None:
    put(tier, "a", "b", "c")
    key = redis_keys.block(block_hash("b"))
    whole = command(redis_client, "GET", key)
    command(redis_client, "SET", key, (whole + b"x")[:length])
    assert get(tier, "a", "b", "c") == [True, False, True]
    assert tier.counters().misses == {"length": 1}
    assert tier.lookup([block_hash("b")]) == [NOWHERE]


def test_a_value_of_another_scope_is_a_miss(tier: RedisTier) -> None:
    put(tier, "a")
    assert get(tier, "a", scope_id=b"x" * 32) == [False]
    assert tier.counters().misses == {"scope": 1}


def test_a_value_under_another_blocks_key_is_a_miss(
    tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    put(tier, "a", "b")
    command(redis_client, "COPY", *map(redis_keys.block, map(block_hash, "ab")), "REPLACE")
    assert get(tier, "a", "b") == [True, False]
    assert tier.counters().misses == {"hash": 1}


def test_a_value_that_the_server_lost_is_a_miss_and_settled(
    tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    put(tier, "a")
    command(redis_client, "DEL", redis_keys.block(block_hash("a")))
    assert get(tier, "a") == [False]
    assert RedisLedger(redis_client, redis_keys).usage() == {}


def test_a_hit_keeps_a_block_longer(tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys) -> None:
    put(tier, "a")
    score = command(redis_client, "ZSCORE", redis_keys.tenant_blocks(RED), block_hash("a"))
    deadline = time.monotonic() + 5
    while command(redis_client, "ZSCORE", redis_keys.tenant_blocks(RED), block_hash("a")) == score:
        assert time.monotonic() < deadline
        assert get(tier, "a") == [True]


def test_answers_name_what_the_ledger_decided(tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys) -> None:
    tenants = Tenants(redis_client, redis_keys)
    tenants.create(TenantPolicy(tenant="red", redis_limit_bytes=2 * VALUE_BYTES))
    tenants.create(TenantPolicy(tenant="blue", redis_limit_bytes=VALUE_BYTES, over_quota="refuse"))
    assert put(tier, 1, 2, 3) == [PutAnswer.STORED, PutAnswer.STORED, PutAnswer.REFUSED_QUOTA]
    assert put(tier, 3) == [PutAnswer.STORED_AFTER_EVICTING_OWN]
    assert get(tier, 1, 2, 3) == [True, False, True]
    assert put(tier, 4, 5, tenant=BLUE) == [PutAnswer.STORED, PutAnswer.REFUSED_QUOTA]
    tenants.set_capacity(VALUE_BYTES)
    assert put(tier, 6, tenant=TenantId("green")) == [PutAnswer.REFUSED_FULL]


def test_a_server_out_of_memory_refuses_and_owes_nothing(private_redis_server: EmbeddedServer) -> None:
    settings = settings_for(private_redis_server)
    tier, client = RedisTier(settings), connect(settings, timeout_s=5.0)
    put(tier, "a")
    command(client, "CONFIG", "SET", "maxmemory", 1)
    assert put(tier, "b", "c") == [PutAnswer.REFUSED_FULL] * 2
    assert RedisLedger(client, Keys(settings.namespace)).usage() == {RED: RedisUsage(VALUE_BYTES, 0, 1)}
    assert get(tier, "a") == [True]
    assert not tier.counters().breaker_open
    client.close()
    tier.close()


def test_threads_may_share_a_tier(tier: RedisTier) -> None:
    def work(thread: int) -> None:
        for i in range(15):
            names = [f"{thread}-{i}", f"shared-{i}"]
            assert PutAnswer.FAILED not in put(tier, *names)
            assert get(tier, names[0]) == [True]

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert all(get(tier, *(f"shared-{i}" for i in range(15))))
    counters = tier.counters()
    assert counters.hits == 6 * 15 + 15
    assert counters.puts[PutAnswer.STORED] == 6 * 15 + 15


def test_a_server_killed_while_blocks_move_costs_misses_and_no_error(
    private_redis_server: EmbeddedServer,
) -> None:
    tier = RedisTier(settings_for(private_redis_server, breaker_failures=1_000))
    put(tier, *range(100))
    started = threading.Event()
    killed = threading.Event()

    def move() -> list[bool]:
        rounds = []
        while not killed.is_set():
            rounds = get(tier, *range(100))
            put(tier, f"new-{time.monotonic()}")
            started.set()
        return rounds

    with ThreadPoolExecutor(3) as threads:
        moving = [threads.submit(move) for _ in range(3)]
        assert started.wait(10)
        private_redis_server.kill()
        at = time.monotonic()
        killed.set()
        for each in moving:
            each.result(10)
        assert get(tier, *range(100)) == [False] * 100
        assert time.monotonic() - at < 5
    assert put(tier, "late") == [PutAnswer.FAILED]
    with pytest.raises(TierUnavailable):
        tier.lookup([block_hash(0)])
    assert tier.counters().misses["unavailable"] >= 100
    tier.close()


def test_a_stopped_server_holds_nobody_longer_than_the_deadlines(
    private_redis_server: EmbeddedServer,
) -> None:
    deadlines = {"lookup_timeout_s": 0.05, "value_timeout_s": 0.1, "control_timeout_s": 0.1}
    tier = RedisTier(settings_for(private_redis_server, breaker_failures=9, **deadlines))
    put(tier, "a")
    os.kill(private_redis_server.pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            started = time.monotonic()
            with pytest.raises(TierTimeout):
                tier.lookup([block_hash("a")])
            assert time.monotonic() - started < 0.3
        started = time.monotonic()
        assert get(tier, "a", "b", "c") == [False] * 3
        assert time.monotonic() - started < 0.5
        started = time.monotonic()
        assert put(tier, *range(100)) == [PutAnswer.FAILED] * 100
        assert time.monotonic() - started < 0.5
    finally:
        os.kill(private_redis_server.pid, signal.SIGCONT)
    assert get(tier, "a") == [True]
    tier.close()


def test_the_breaker_opens_answers_at_once_and_closes_by_itself(private_redis_server: EmbeddedServer) -> None:
    clock = ManualClock()
    settings = settings_for(private_redis_server, breaker_failures=3, breaker_open_s=2.0, lookup_timeout_s=0.05)
    tier = RedisTier(settings, clock)
    put(tier, "a")
    os.kill(private_redis_server.pid, signal.SIGSTOP)
    for _ in range(3):
        with pytest.raises(TierError):
            tier.lookup([block_hash("a")])
    assert tier.counters().breaker_open
    started = time.monotonic()
    for _ in range(20):
        with pytest.raises(TierUnavailable, match="breaker is open"):
            tier.lookup([block_hash("a")])
        assert get(tier, "a") == [False]
        assert put(tier, "b") == [PutAnswer.FAILED]
    assert time.monotonic() - started < 0.5
    clock.advance(2.0)
    with pytest.raises(TierTimeout):  # The probe.
        tier.lookup([block_hash("a")])
    with pytest.raises(TierUnavailable, match="breaker is open"):
        tier.lookup([block_hash("a")])
    os.kill(private_redis_server.pid, signal.SIGCONT)
    clock.advance(2.0)
    assert get(tier, "a") == [True]
    assert tier.lookup([block_hash("a")])[0].in_redis
    counters = tier.counters()
    assert (counters.breaker_open, counters.breaker_opened_total) == (False, 1)
    tier.close()
