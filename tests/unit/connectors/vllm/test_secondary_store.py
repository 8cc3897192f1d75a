"""Chunks through a real server: never wrong bytes, never an exception, never a wait, whatever becomes of Redis."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import redis

from tests.support.faulty_relay import Fault, FaultyRelay
from tests.support.redis_server import eventually
from tests.unit.connectors.vllm.secondary_builders import (
    BLUE,
    CHUNK_BYTES,
    FACTS,
    RED,
    Engine,
    engine,
    given,
    key,
    keys,
    right_bytes,
)
from tiered.cli.ports import free_ports
from tiered.cluster.connection import command, connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, RedisUsage
from tiered.cluster.tenants import Tenants
from tiered.codec.frame import HEADER_BYTES
from tiered.connectors.vllm.secondary_errands import Policies
from tiered.connectors.vllm.secondary_identity import identity_of
from tiered.connectors.vllm.secondary_lookups import Answer
from tiered.connectors.vllm.secondary_settings import read_settings
from tiered.connectors.vllm.secondary_store import Chunk, SecondaryStore
from tiered.errors import ConfigError
from tiered.tenancy.policy import TenantPolicy
from tiered.types import TenantId

HIT, MISS, RETRY = Answer.HIT, Answer.MISS, Answer.RETRY
VALUE_BYTES = HEADER_BYTES + CHUNK_BYTES
AT_ONCE_S = 0.25
"""A call that waits for nothing, on a machine that is busy with other things."""


@pytest.fixture
def namespace() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(redis_server: EmbeddedServer) -> Iterator[redis.Redis]:
    settings = read_settings(given(redis_server)).redis
    client = connect(settings, timeout_s=5)
    assert isinstance(client, redis.Redis)
    yield client
    client.close()


@pytest.fixture
def red(redis_server: EmbeddedServer, namespace: str) -> Iterator[Engine]:
    with engine(redis_server, namespace=namespace) as one:
        yield one


def usage(client: redis.Redis, namespace: str) -> dict[TenantId, RedisUsage]:
    return RedisLedger(client, Keys(namespace)).usage()


def put_policy(client: redis.Redis, namespace: str, policy: TenantPolicy) -> None:
    assert Tenants(client, Keys(namespace)).create(policy)


def values(client: redis.Redis, namespace: str) -> list[bytes]:
    """Keys of all values, in no order."""
    found: list[bytes] = command(client, "KEYS", f"*{namespace}*:b:*")
    return found


@contextmanager
def at_once() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < AT_ONCE_S


def test_what_one_engine_stored_another_finds_and_loads_bit_equal(
    redis_server: EmbeddedServer, red: Engine, namespace: str, client: redis.Redis
) -> None:
    prompt = keys("p", 20)
    assert red.save(prompt) == [True] * 20
    assert usage(client, namespace) == {RED: RedisUsage(20 * VALUE_BYTES, 0, 20)}
    with engine(redis_server, namespace=namespace) as other:
        assert other.ask(prompt) == [RETRY] * 20
        assert other.resolve([*prompt, key("p", 20)]) == [HIT] * 20 + [MISS]
        assert other.fetch(prompt, first_row=30) == [True] * 20
    assert red.save(prompt) == [True] * 20, "what is there already is where it should be"
    assert usage(client, namespace) == {RED: RedisUsage(20 * VALUE_BYTES, 0, 20)}


def test_a_scheduling_pass_is_one_round_trip(red: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    lookup = red.store._tier.lookup
    monkeypatch.setattr(red.store._tier, "lookup", lambda hashes: asked.append(len(hashes)) or lookup(hashes))
    for request in ("a", "b"):
        for index in range(10):
            assert red.store.lookup(key(request, index), request, RED) is RETRY
    red.store.end_pass()
    eventually(lambda: red.store.lookup(key("a", 0), "a", RED) is MISS)
    assert asked == [20]


def test_another_tenant_other_weights_and_another_layout_find_nothing(
    redis_server: EmbeddedServer, red: Engine, namespace: str
) -> None:
    prompt = keys("p", 4)
    assert red.save(prompt) == [True] * 4
    assert red.resolve(prompt, tenant=BLUE, request="b") == [MISS] * 4
    assert red.fetch(prompt, tenant=BLUE) == [False] * 4
    with engine(redis_server, namespace=namespace, weights_version="2") as other:
        assert other.resolve(prompt) == [MISS] * 4
    turned = msgspec.structs.replace(FACTS, order="LBHNC")
    with engine(redis_server, namespace=namespace, facts=turned) as other:
        assert other.resolve(prompt) == [MISS] * 4
    assert red.resolve(prompt) == [HIT] * 4


def test_tenants_of_one_group_share_once_their_policies_say_so(
    red: Engine, client: redis.Redis, namespace: str
) -> None:
    for tenant in (RED, BLUE):
        put_policy(client, namespace, TenantPolicy(tenant=tenant, sharing="group:g"))
    prompt = keys("p", 3)

    def shared() -> bool:
        red.save(prompt)
        return red.resolve(prompt, tenant=BLUE, request="b") == [HIT] * 3

    eventually(shared)
    assert red.fetch(prompt, tenant=BLUE) == [True] * 3
    assert set(usage(client, namespace)) == {RED, BLUE}, "who reads a shared block pays its part"


@pytest.mark.parametrize("offset", [0, 20, 100, HEADER_BYTES, HEADER_BYTES + CHUNK_BYTES - 1])
def test_a_changed_byte_is_a_failed_chunk_and_a_miss_and_goes(
    red: Engine, client: redis.Redis, namespace: str, offset: int
) -> None:
    prompt = keys("p", 3)
    red.save(prompt)
    assert red.resolve(prompt) == [HIT] * 3
    victim = values(client, namespace)[0]
    byte = command(client, "GETRANGE", victim, offset, offset)[0]
    command(client, "SETRANGE", victim, offset, bytes([byte ^ 0x40]))
    red.store.begin_request("r")
    good = red.fetch(prompt)
    assert sorted(good) == [False, True, True]
    bad = good.index(False)
    assert red.ask(prompt)[bad] is MISS, "not to be promised again to the request that could not load it"
    assert command(client, "EXISTS", victim) == 0
    assert usage(client, namespace)[RED].blocks == 2
    red.store.end_request("r")
    assert red.save(prompt) == [True] * 3
    assert red.fetch(prompt, request="s") == [True] * 3


@pytest.mark.parametrize("length", [0, 7, HEADER_BYTES, VALUE_BYTES - 1, VALUE_BYTES + 1])
def test_a_value_of_a_wrong_length_is_a_failed_chunk(
    red: Engine, client: redis.Redis, namespace: str, length: int
) -> None:
    prompt = keys("p", 3)
    red.save(prompt)
    victim = values(client, namespace)[0]
    command(client, "SET", victim, (command(client, "GET", victim) + b"x")[:length])
    assert sorted(red.fetch(prompt)) == [False, True, True]


def test_values_that_changed_places_are_failed_chunks(red: Engine, client: redis.Redis, namespace: str) -> None:
    prompt = keys("p", 2)
    red.save(prompt)
    one, two = values(client, namespace)
    first, second = command(client, "GET", one), command(client, "GET", two)
    command(client, "SET", one, second)
    command(client, "SET", two, first)
    assert red.fetch(prompt) == [False, False]


def test_a_promise_that_redis_forgot_is_not_made_twice(red: Engine, client: redis.Redis, namespace: str) -> None:
    """vllm#49176: an answer that was kept had a request load the same chunk for ever."""
    prompt = keys("p", 4)
    red.save(prompt)
    red.store.begin_request("r")
    assert red.resolve(prompt) == [HIT] * 4
    for victim in values(client, namespace):
        command(client, "DEL", victim)
    assert red.ask(prompt) == [HIT] * 4
    assert red.fetch(prompt) == [False] * 4
    for _ in range(3):
        assert red.ask(prompt) == [MISS] * 4


def test_a_limit_is_kept_and_the_tail_of_a_prefix_leaves_first(
    red: Engine, client: redis.Redis, namespace: str
) -> None:
    put_policy(client, namespace, TenantPolicy(tenant=RED, redis_limit_bytes=6 * VALUE_BYTES))
    old, new = keys("old", 4), keys("new", 4)
    assert red.save(old) == [True] * 4
    assert red.save(new) == [True] * 4
    assert usage(client, namespace)[RED].used_bytes == 6 * VALUE_BYTES
    assert red.resolve([*old, *new]) == [HIT, HIT, MISS, MISS, *[HIT] * 4]


def test_a_tenant_that_refuses_to_evict_is_told_by_a_failed_store(
    red: Engine, client: redis.Redis, namespace: str
) -> None:
    policy = TenantPolicy(tenant=RED, redis_limit_bytes=3 * VALUE_BYTES, over_quota="refuse")
    put_policy(client, namespace, policy)
    assert red.save(keys("p", 5)) == [True, True, True, False, False]
    counters = red.store.counters()
    assert (counters.chunks_stored, counters.stores_failed) == (3, 2)


def test_a_lossy_codec_is_not_used_on_bytes_nobody_can_interpret(
    redis_server: EmbeddedServer, client: redis.Redis, namespace: str
) -> None:
    put_policy(client, namespace, TenantPolicy(tenant=RED, redis_codec="fp8"))
    with engine(redis_server, namespace=namespace) as red:
        prompt = keys("p", 3)
        for index in range(3):
            red.row(index)[:] = bytes([index]) * CHUNK_BYTES
        assert red.wait(red.submit_store(prompt)) == [True] * 3
        for index in range(3):
            red.row(10 + index)[:] = b"\xee" * CHUNK_BYTES
        assert red.wait(red.submit_load(prompt, first_row=10)) == [True] * 3
        for index in range(3):
            assert red.row(10 + index) == bytes([index]) * CHUNK_BYTES
        assert red.store.counters().tier.codecs == {"lossless": 3}


def test_hashes_that_can_be_forged_are_left_alone(red: Engine) -> None:
    weak = [k[:16] + k[-4:] for k in keys("p", 3)]
    assert red.ask(weak) == [MISS] * 3
    assert red.wait(red.submit_store(weak)) == [False] * 3
    assert red.wait(red.submit_load(weak)) == [False] * 3
    assert red.store.counters().unshareable > 0
    red.store.used(RED, [Chunk(k) for k in weak])


def test_a_tenant_that_may_use_nothing_uses_nothing(red: Engine, client: redis.Redis, namespace: str) -> None:
    chunks = [Chunk(k, depth, depth) for depth, k in enumerate(keys("p", 2))]
    assert red.store.lookup(chunks[0].key, "r", None) is MISS
    red.store.store(1, "r", None, chunks)
    red.store.load(2, "r", None, chunks)
    red.store.used(None, chunks)
    assert red.wait(1) == red.wait(2) == [False, False]
    assert values(client, namespace) == []


def test_an_empty_job_is_done(red: Engine) -> None:
    assert red.wait(red.submit_store([])) == []
    assert red.wait(red.submit_load([])) == []


# Redis in trouble.


def test_redis_killed_and_back_empty(private_redis_server: EmbeddedServer) -> None:
    server = private_redis_server
    quick = {"breaker_failures": 2, "breaker_open_s": 0.2, "lookup_timeout_s": 0.3, "lookup_wait_s": 0.3}
    with engine(server, **quick) as red:
        prompt = keys("p", 4)
        assert red.save(prompt) == [True] * 4
        assert red.resolve(prompt) == [HIT] * 4
        server.stop()
        assert red.fetch(prompt) == [False] * 4
        assert red.ask(prompt) == [MISS] * 4
        eventually(lambda: red.wait(red.submit_store(prompt)) == [False] * 4 and red.store._is_down)
        for index in range(200):  # once it is known to be down, nobody waits for anything
            with at_once():
                assert red.ask([key("q", index)], request=f"q{index}") == [MISS]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_server_that_says_nothing_holds_nobody_up_and_is_used_again_when_it_speaks(
    private_redis_server: EmbeddedServer,
) -> None:
    server = private_redis_server
    quick = {
        "breaker_failures": 2,
        "breaker_open_s": 0.2,
        "lookup_timeout_s": 0.1,
        "control_timeout_s": 0.5,
        "value_timeout_s": 0.5,
        "lookup_wait_s": 0.3,
        "load_timeout_s": 1.0,
        "store_timeout_s": 1.0,
    }
    with engine(server, **quick) as red:
        prompt = keys("p", 40)
        eventually(lambda: red.save(prompt) == [True] * 40)
        eventually(lambda: red.resolve(prompt) == [HIT] * 40)
        with stopped(server.pid):
            began = time.monotonic()
            with at_once():
                loads = [red.submit_load(prompt[:4], first_row=40) for _ in range(3)]
                stores = [red.submit_store(keys(n, 4)) for n in range(3)]
            for index in range(100):
                with at_once():
                    red.ask([key("q", index)], request="q")
            assert all(red.wait(job) == [False] * 4 for job in loads + stores)
            assert time.monotonic() - began < 15
            eventually(lambda: red.store._is_down)
            with at_once():
                assert red.ask(prompt, request="new") == [MISS] * 40
        eventually(lambda: not red.store._is_down)
        eventually(lambda: red.resolve(prompt, request=uuid.uuid4().hex) == [HIT] * 40)
        eventually(lambda: red.fetch(prompt, first_row=20) == [True] * 40)


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET, Fault.CORRUPT, Fault.STALL])
def test_an_answer_that_breaks_in_its_middle_gives_right_bytes_or_none(
    tmp_path: Path, namespace: str, fault: Fault
) -> None:
    """In the first value, and in a later one; what the start says to Redis is shorter than either."""
    prompt, (port,) = keys("p", 12), free_ports(1)
    quick = {"namespace": namespace, "value_timeout_s": 0.5, "load_timeout_s": 1.0, "control_timeout_s": 1.0}
    with EmbeddedServer.start(tmp_path / "redis", maxmemory_bytes=None, port=port) as server:
        for n_whole in (0, 5):
            with engine(server, namespace=namespace) as red:
                assert red.save(prompt) == [True] * 12
            with (
                FaultyRelay(port, fault, after_bytes=n_whole * VALUE_BYTES + VALUE_BYTES // 2) as relay,
                engine(f"redis://127.0.0.1:{relay.port}", **quick) as red,
            ):
                good = red.fetch(prompt)
                assert relay.reached.is_set()
                assert not good[n_whole]
                assert all(good[:n_whole]) or fault is Fault.RESET, "a reset takes with it what is on its way"


def test_draining_a_stuck_server_ends_and_nobody_writes_afterwards(private_redis_server: EmbeddedServer) -> None:
    quick = {"control_timeout_s": 0.5, "value_timeout_s": 0.5, "load_timeout_s": 1.0}
    with engine(private_redis_server, **quick) as red:
        prompt = keys("p", 8)
        assert red.save(prompt) == [True] * 8
        with stopped(private_redis_server.pid):
            jobs = [red.submit_load(prompt, first_row=8 * n) for n in range(8)]
            jobs += [red.submit_store(keys(n, 8)) for n in range(4)]
            began = time.monotonic()
            red.store.drain()
            assert time.monotonic() - began < 10
            assert sorted(done.job_id for done in red.store.finished()) == jobs
            before = bytes(red.memory)
        red.store._tier.lookup([])
        assert red.store.finished() == []
        assert bytes(red.memory) == before
        eventually(lambda: not red.store._is_down)
        eventually(lambda: red.fetch(prompt) == [True] * 8)


def test_a_full_queue_fails_a_job_at_once_and_a_job_alone_always_fits(
    private_redis_server: EmbeddedServer,
) -> None:
    quick = {"control_timeout_s": 1.0, "value_timeout_s": 1.0, "store_timeout_s": 1.0, "queue_chunks_max": 4}
    with engine(private_redis_server, **quick) as red:
        assert red.save(keys("p", 20)) == [True] * 20
        with stopped(private_redis_server.pid), at_once():
            jobs = [red.submit_store(keys(n, 4)) for n in range(5)]
            failed = {done.job_id for done in red.store.finished()}
        assert failed >= set(jobs[2:]), "one runs, one waits"
        assert failed <= set(jobs[1:])


def test_closing_in_the_middle_of_everything_lets_go_of_the_memory(private_redis_server: EmbeddedServer) -> None:
    quick = {"control_timeout_s": 0.5, "value_timeout_s": 0.5, "load_timeout_s": 1.0, "lookup_timeout_s": 0.5}
    threads = set(threading.enumerate())
    with engine(private_redis_server, **quick) as red, stopped(private_redis_server.pid):
        for n in range(6):
            red.submit_load(keys(n, 4))
            red.submit_store(keys(n, 4))
            red.ask(keys(n, 4))
        red.store.close()
        assert {t for t in threading.enumerate() if t.name.startswith("tiered-")} <= threads
        red.memory.extend(b"x")
        red.store.close = lambda: None  # type: ignore[method-assign]


def test_a_defect_is_a_failed_job_and_the_next_one_runs(red: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a bug")

    prompt = keys("p", 3)
    with monkeypatch.context() as patched:
        for name in ("get", "put", "lookup"):
            patched.setattr(red.store._tier, name, broken)
        assert red.save(prompt) == [False] * 3
        assert red.fetch(prompt) == [False] * 3
        assert red.resolve(prompt) == [MISS] * 3
    assert red.save(prompt) == [True] * 3
    assert red.fetch(prompt) == [True] * 3


def test_what_is_used_again_stays_longer(red: Engine, client: redis.Redis, namespace: str) -> None:
    put_policy(client, namespace, TenantPolicy(tenant=RED, redis_limit_bytes=6 * VALUE_BYTES))
    first, second = keys("first", 3), keys("second", 3)
    assert red.save(first) == red.save(second) == [True] * 3
    blocks = Keys(namespace).tenant_blocks(RED)
    newest = command(client, "ZREVRANGE", blocks, 0, 0)
    red.store.used(RED, [Chunk(k, depth) for depth, k in enumerate(first)])
    eventually(lambda: command(client, "ZREVRANGE", blocks, 0, 0) != newest)
    assert red.save(keys("third", 3)) == [True] * 3
    assert red.resolve([*first, *second]) == [HIT] * 3 + [MISS] * 3


# At the start.


def test_a_start_without_redis_is_refused_in_one_sentence() -> None:
    threads = set(threading.enumerate())
    settings = read_settings(given("redis://127.0.0.1:1", connect_timeout_s=0.5, control_timeout_s=0.5))
    with pytest.raises(ConfigError, match=r"^secondary_tiers\.redis_url: no usable server at redis://127.0.0.1:1"):
        SecondaryStore(settings, identity_of(FACTS, weights_version="1"), memoryview(bytearray(CHUNK_BYTES)))
    assert set(threading.enumerate()) <= threads


def test_a_namespace_that_is_dealt_otherwise_is_refused_in_one_sentence(
    redis_server: EmbeddedServer, red: Engine, namespace: str
) -> None:
    settings = read_settings(given(redis_server, namespace=namespace, partitions=4))
    with pytest.raises(ConfigError, match=r"^secondary_tiers\.partitions: 4 is not what .* set partitions to 1"):
        SecondaryStore(settings, identity_of(FACTS, weights_version="1"), memoryview(bytearray(CHUNK_BYTES)))


def test_partitions_are_used(redis_server: EmbeddedServer, namespace: str) -> None:
    with engine(redis_server, namespace=namespace, partitions=4) as red:
        assert red.save(keys("p", 12)) == [True] * 12
        assert red.resolve(keys("p", 12)) == [HIT] * 12
        assert red.fetch(keys("p", 12)) == [True] * 12


def test_many_names_of_tenants_cost_bounded_memory() -> None:
    policies = Policies()
    for n in range(10_000):
        assert policies.of(TenantId(f"t{n}")).label == f"tenant:t{n}"
    assert len(policies._in_force[1]) <= 4096


def test_two_engines_that_store_the_same_at_once_pay_once(
    redis_server: EmbeddedServer, red: Engine, namespace: str, client: redis.Redis
) -> None:
    prompt = keys("p", 30)
    with engine(redis_server, namespace=namespace) as other:
        red.fill(prompt)
        other.fill(prompt)
        first, second = red.submit_store(prompt), other.submit_store(prompt)
        assert red.wait(first) == other.wait(second) == [True] * 30
    assert usage(client, namespace) == {RED: RedisUsage(30 * VALUE_BYTES, 0, 30)}
    assert red.fetch(prompt) == [True] * 30
    assert right_bytes(prompt[0]) == red.row(0)
