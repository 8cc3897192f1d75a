"""Bounds over several partitions, raced on one server: what the partitions have between them is never more."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.support.redis_server import block_hash, eventually
from tiered.cluster import scripts
from tiered.cluster.allotments import Allotments
from tiered.cluster.birth import Birth
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveAnswer, ReserveRequest
from tiered.cluster.tenants import Tenants
from tiered.tenancy.policy import TenantPolicy
from tiered.types import TenantId

RED, BLUE = TenantId("red"), TenantId("blue")
PARTITIONS = 4
SIZE = 64

_ALL = "local all = {} for i, key in ipairs(KEYS) do all[i] = redis.call('HGETALL', key) end return all"


@pytest.fixture
def keys(redis_keys: Keys) -> Keys:
    return Keys(redis_keys.namespace, partitions=PARTITIONS)


def limits_of(client: redis.Redis, keys: Keys) -> list[dict[str, str]]:
    return [
        {k.decode(): v.decode() for k, v in command(client, "HGETALL", part.limits()).items()}
        for part in keys.every()
    ]


def dealt(client: redis.Redis, keys: Keys, name: str) -> int:
    return sum(int(limits.get(name) or limits["*"]) for limits in limits_of(client, keys))


def policy(tenant: TenantId, limit: int | None, over_quota: str = "refuse") -> TenantPolicy:
    return TenantPolicy.model_validate({"tenant": tenant, "redis_limit_bytes": limit, "over_quota": over_quota})


def reserve(ledger: RedisLedger, *names: object, tenant: TenantId = RED, size: int = SIZE) -> list[ReserveAnswer]:
    return ledger.reserve([ReserveRequest(block_hash(name), tenant, size, 0) for name in names], ttl_s=60)


def test_a_limit_is_dealt_to_the_byte_and_follows_its_policy(redis_client: redis.Redis, keys: Keys) -> None:
    tenants = Tenants(redis_client, keys)
    tenants.create(policy(RED, 1001))
    tenants.set_capacity(5003)
    assert (dealt(redis_client, keys, "red"), dealt(redis_client, keys, ":capacity")) == (1001, 5003)
    for limit in (10, 0, 1 << 60, 7):
        tenants.replace(policy(RED, limit))
        assert dealt(redis_client, keys, "red") == limit
    tenants.replace(policy(RED, None))
    tenants.set_capacity(None)
    assert all(set(limits) == {":deal", "o:red", "w:red"} for limits in limits_of(redis_client, keys))
    tenants.delete(RED)
    assert all(set(limits) == {":deal"} for limits in limits_of(redis_client, keys))


def test_a_limit_smaller_than_a_block_in_every_part_still_holds_its_blocks(
    redis_client: redis.Redis, keys: Keys
) -> None:
    Tenants(redis_client, keys).create(policy(RED, SIZE))
    ledger = RedisLedger(redis_client, keys)
    assert reserve(ledger, "a")[0].reserved
    assert reserve(ledger, "b") == [ReserveAnswer.REFUSED_QUOTA]
    assert dealt(redis_client, keys, "red") == SIZE


def test_who_is_bounded_by_the_default_limit_can_use_all_of_it(redis_client: redis.Redis, keys: Keys) -> None:
    tenants, ledger = Tenants(redis_client, keys), RedisLedger(redis_client, keys)
    tenants.replace(policy(TenantId("default"), 10 * SIZE))
    answers = reserve(ledger, *range(30))
    assert sum(answer.reserved for answer in answers) == 10
    assert ledger.usage()[RED].pending_bytes == 10 * SIZE
    assert dealt(redis_client, keys, "red") == 10 * SIZE
    tenants.replace(policy(TenantId("default"), 12 * SIZE))
    assert sum(answer.reserved for answer in reserve(ledger, *range(100, 130))) == 2


def test_all_of_the_capacity_can_be_used(redis_client: redis.Redis, keys: Keys) -> None:
    Tenants(redis_client, keys).set_capacity(10 * SIZE)
    ledger = RedisLedger(redis_client, keys)
    answers = [answer for name in range(30) for answer in reserve(ledger, name)]
    assert sum(answer.reserved for answer in answers) == 10
    assert set(answers) == {ReserveAnswer.RESERVED, ReserveAnswer.REFUSED_FULL}


@pytest.mark.parametrize("step", ["stored", "lowered in one partition", "taken and never given"])
def test_what_a_crash_left_undone_is_found_and_put_right(redis_client: redis.Redis, keys: Keys, step: str) -> None:
    Tenants(redis_client, keys).create(policy(RED, 1000))
    new = policy(RED, 400)
    if step == "taken and never given":
        new = policy(RED, 1000)
        scripts.cut(redis_client, "red", [(keys.every()[1], 77, False)])
    else:
        scripts.change_policy(redis_client, keys, RED, how="put", policy=new.model_dump_json())
    if step == "lowered in one partition":
        number, _, _ = scripts.deal(redis_client, keys, begin=True)
        scripts.set_bounds(redis_client, keys.every()[0], number, {"red": (100, True)}, {}, only_falls=True)
    allotments = Allotments(redis_client, keys)
    assert [allotments.repair() for _ in range(3)] == [False, True, False]
    assert dealt(redis_client, keys, "red") == new.redis_limit_bytes


def test_with_one_partition_a_crash_is_put_right_at_the_first_look(
    redis_client: redis.Redis, redis_keys: Keys
) -> None:
    allotments = Allotments(redis_client, redis_keys)
    assert not allotments.repair()
    text = policy(RED, 400).model_dump_json()
    scripts.change_policy(redis_client, redis_keys, RED, how="put", policy=text)
    assert [allotments.repair() for _ in range(2)] == [True, False]
    assert limits_of(redis_client, redis_keys)[0]["red"] == "400"


def test_a_move_that_a_deal_overtook_gives_nothing(redis_client: redis.Redis, keys: Keys) -> None:
    tenants, parts = Tenants(redis_client, keys), keys.every()
    tenants.create(policy(RED, 1000))
    ((taken, number),) = scripts.cut(redis_client, "red", [(parts[0], 100, False)])
    assert taken == 100
    tenants.replace(policy(RED, 1000))
    assert scripts.raise_limits(redis_client, number, [(parts[1], {"red": taken})]) == [False]
    assert dealt(redis_client, keys, "red") == 1000


def test_an_older_deal_leaves_a_newer_one_as_it_is(redis_client: redis.Redis, keys: Keys) -> None:
    number, _, _ = scripts.deal(redis_client, keys, begin=True)
    Tenants(redis_client, keys).create(policy(RED, 1000))
    for part in keys.every():
        bounds = {"red": (5, False)}
        assert scripts.set_bounds(redis_client, part, number, bounds, {}, only_falls=True) is None
    assert dealt(redis_client, keys, "red") == 1000


def test_a_server_that_forgot_the_number_of_the_last_deal_does_not_hold_up_the_next(
    redis_client: redis.Redis, keys: Keys
) -> None:
    """On a Redis Cluster: the master of the cluster's own keys and of one partition restarts empty, others know."""
    tenants, parts = Tenants(redis_client, keys), keys.every()
    for limit in (100, 400, 1000):
        tenants.replace(policy(TenantId("default"), limit))
    ((taken, number),) = scripts.cut(redis_client, "red", [(parts[2], 100, False)])
    forgotten = [keys.deals(), keys.tenants(), keys.tenants_revision(), keys.shape(), parts[3].limits()]
    command(redis_client, "DEL", *forgotten)
    tenants.give_back([policy(RED, 1000)], Birth())
    assert [limits["red"] for limits in limits_of(redis_client, keys)] == ["250"] * 4
    assert scripts.raise_limits(redis_client, number, [(parts[1], {"red": taken})]) == [False]


def test_a_deals_number_is_never_given_out_again(redis_client: redis.Redis, keys: Keys) -> None:
    numbers = []
    for _ in range(20):
        numbers.append(scripts.deal(redis_client, keys, begin=True)[0])
    assert scripts.deal(redis_client, keys, begin=False)[0] == numbers[-1]
    command(redis_client, "DEL", keys.deals())
    eventually(lambda: int(time.time() * 1000) > numbers[-1])
    numbers.append(scripts.deal(redis_client, keys, begin=True)[0])
    assert numbers == sorted(set(numbers))


def test_writers_deals_and_moves_at_once_never_exceed_a_limit(redis_client: redis.Redis, keys: Keys) -> None:
    """At every sample of a partition, what is held there is within its allotment; and what all have adds up."""
    limit = 40 * SIZE + 13
    tenants, ledger, allotments = (
        Tenants(redis_client, keys),
        RedisLedger(redis_client, keys),
        Allotments(redis_client, keys),
    )
    tenants.create(policy(RED, limit, "evict_own"))
    tenants.create(policy(BLUE, limit, "refuse"))
    done = threading.Event()

    def write(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(60):
            tenant = choose.choice((RED, BLUE))
            names = [(tenant, choose.randrange(200)) for _ in range(4)]
            hashes = [block_hash(name) for name in names]
            got = reserve(ledger, *names, tenant=tenant)
            mine = [(h, tenant, SIZE) for h, answer in zip(hashes, got, strict=True) if answer.reserved]
            for h, _, _ in mine:
                command(redis_client, "SET", keys.of(h).block(h), b"x" * SIZE, "NX", "PX", 60_000)
            if choose.random() < 0.2:
                ledger.abort([(h, tenant) for h, _, _ in mine])
            else:
                ledger.commit(mine)
            if tenant == BLUE:
                ledger.remove(hashes[:2])

    def deal() -> int:
        deals = 0
        while not done.is_set():
            allotments.deal()
            deals += 1
            time.sleep(0.003)  # the rate of a very busy administrator; without it nobody else is served
        return deals

    def sample() -> int:
        samples = 0
        while not done.is_set():
            names = [key for part in keys.every() for key in (part.usage(), part.limits())]
            flat = command(redis_client, "EVAL", _ALL, len(names), *names)  # one moment of all of them
            books = [dict(zip(one[::2], one[1::2], strict=True)) for one in flat]
            for tenant in (b"red", b"blue"):
                bounds = [int(limits[tenant]) for limits in books[1::2]]
                held = [int(u.get(b"u:" + tenant, 0)) + int(u.get(b"p:" + tenant, 0)) for u in books[::2]]
                assert all(h <= bound for h, bound in zip(held, bounds, strict=True))
                assert sum(bounds) <= limit
            samples += 1
        return samples

    with ThreadPoolExecutor(9) as threads:
        others: list[Callable[[], int]] = [sample, deal, deal]
        running = [threads.submit(other) for other in others]
        writers = [threads.submit(write, seed) for seed in range(6)]
        try:
            for writer in writers:
                writer.result(60)
        finally:
            done.set()
        assert running[0].result(10) > 20
        assert running[1].result(10) > 5
    allotments.deal()
    assert dealt(redis_client, keys, "red") == dealt(redis_client, keys, "blue") == limit
    assert all(usage.used_bytes <= limit for usage in ledger.usage().values())
