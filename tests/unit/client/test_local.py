"""LocalClient over a real Redis: what leaves comes back bit-equal, and damage anywhere is a miss."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.support.content import LAYOUT, SCOPE, TENANT, filler, hashes_of, prompt, save, take
from tests.support.redis_server import eventually
from tiered.blocks.state import BlockState
from tiered.client.local import LocalClient
from tiered.client.saving import verified_blocks
from tiered.cluster.keys import Keys
from tiered.config import PoolSettings, RedisSettings
from tiered.core.invariants import check_core
from tiered.tenancy.policy import TenantPolicy
from tiered.tiers.redis.tier import RedisTier
from tiered.types import BlockId, Source, TenantId

T = LAYOUT.block_tokens
MakeClient = Callable[..., LocalClient]


@pytest.fixture
def tier(redis_settings: RedisSettings) -> Iterator[RedisTier]:
    tier = RedisTier(redis_settings)
    yield tier
    tier.close()


@pytest.fixture
def make_client(tier: RedisTier) -> Iterator[MakeClient]:
    made: list[LocalClient] = []

    def make(n_blocks: int, *, below: bool = True, **settings: object) -> LocalClient:
        pool = PoolSettings.model_validate({"bytes": n_blocks * LAYOUT.block_bytes, "free_target": 0.0, **settings})
        client = LocalClient(SCOPE, pool, redis=tier if below else None)
        made.append(client)
        return client

    yield make
    for client in made:
        check_core(client.core)
        client.close()


def stored(tier: RedisTier) -> int:
    return sum(n for answer, n in tier.counters().puts.items() if answer.value.startswith("stored"))


def push_out(client: LocalClient, tier: RedisTier, n_blocks: int) -> None:
    """Fill the pool with something else, until what was there is in Redis."""
    save(client, prompt(99, client.core.n_blocks))
    eventually(lambda: stored(tier) >= n_blocks)


def test_save_evict_load_is_bit_equal(make_client: MakeClient, tier: RedisTier) -> None:
    client = make_client(8)
    save(client, prompt(1, 5))
    push_out(client, tier, 5)
    assert take(client, prompt(1, 5)) == Counter({Source.REDIS: 5})
    assert take(client, prompt(1, 5)) == Counter({Source.HOT: 5})


def test_another_clients_pool_is_filled_from_redis(make_client: MakeClient, tier: RedisTier) -> None:
    first, second = make_client(8), make_client(8)
    save(first, prompt(1, 5))
    push_out(first, tier, 5)
    assert take(second, prompt(1, 5)) == Counter({Source.REDIS: 5})


def test_a_value_damaged_in_redis_ends_the_prefix_before_it(
    make_client: MakeClient, tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    client = make_client(8)
    save(client, prompt(1, 5))
    push_out(client, tier, 5)
    key = redis_keys.block(hashes_of(prompt(1, 5))[2])
    redis_client.setrange(key, 192 + 100, b"\xff\x00\xff")
    assert take(client, prompt(1, 5)) == Counter({Source.REDIS: 2})
    assert take(client, prompt(1, 5)) == Counter({Source.HOT: 2})
    assert redis_client.exists(key) == 0


def test_without_a_lower_tier_what_leaves_is_gone(make_client: MakeClient) -> None:
    client = make_client(8, below=False)
    save(client, prompt(1, 5))
    save(client, prompt(2, 8))
    assert take(client, prompt(1, 5)) == Counter()
    assert take(client, prompt(2, 8)) == Counter({Source.HOT: 8})


@pytest.mark.parametrize("damaged", [0, 2, 4])
def test_a_damaged_byte_of_the_pool_ends_what_is_verified(make_client: MakeClient, damaged: int) -> None:
    client = make_client(8)
    save(client, prompt(1, 5))
    match = client.match(prompt(1, 5), tenant=TENANT)
    loaded = client.load(match)
    assert verified_blocks(client.pool, loaded.block_ids, loaded.checksums) == 5
    client.pool.host_view(loaded.block_ids[damaged])[-1] ^= 0x01
    assert verified_blocks(client.pool, loaded.block_ids, loaded.checksums) == damaged
    client.release(match, used_tokens=0)


def test_a_block_without_a_checksum_is_taken_as_it_is(make_client: MakeClient) -> None:
    client = make_client(2)
    assert verified_blocks(client.pool, [BlockId(0), BlockId(1)], [None, b"x" * 16]) == 1


def test_a_damaged_block_of_the_pool_is_not_stored_in_redis(make_client: MakeClient, tier: RedisTier) -> None:
    client = make_client(8)
    save(client, prompt(1, 1))
    match = client.match(prompt(1, 1), tenant=TENANT)
    client.pool.host_view(match.block_ids[0])[0] ^= 0x01
    client.release(match, used_tokens=0)
    save(client, prompt(2, 1))

    def all_left() -> bool:
        client.set_policies({TENANT: TenantPolicy(tenant=TENANT, hot_limit_bytes=0)})
        return client.core.blocks_in(BlockState.FREE) == 8 and stored(tier) == 1

    eventually(all_left)
    assert client._driver.counters.torn_copies == 1
    assert take(client, prompt(1, 1)) == Counter()


def test_a_load_that_may_not_wait_brings_what_is_hot(make_client: MakeClient, tier: RedisTier) -> None:
    client = make_client(12)
    save(client, prompt(1, 3))
    push_out(client, tier, 3)
    match = client.match(prompt(1, 3), tenant=TENANT)
    assert client.load(match, deadline_s=0.0).block_ids == ()
    eventually(lambda: len(client.load(match).block_ids) == 3)
    assert client.release(match, used_tokens=3 * T)


def test_after_a_close_a_load_misses_at_once(make_client: MakeClient, tier: RedisTier) -> None:
    client = make_client(8)
    save(client, prompt(1, 3))
    push_out(client, tier, 3)
    match = client.match(prompt(1, 3), tenant=TENANT)
    client._driver.close(timeout_s=5)
    assert client.load(match, deadline_s=100.0).block_ids == ()
    assert client.release(match, used_tokens=0)


def test_a_save_nested_in_a_save_of_the_same_prefix_says_busy(make_client: MakeClient) -> None:
    client = make_client(8)
    reasons: list[str] = []

    def fill(pool: object, block_ids: object, first_index: int) -> None:
        reasons.append(save(client, prompt(1, 2)).reason)
        filler(hashes_of(prompt(1, 2)))(pool, block_ids, first_index)  # type: ignore[arg-type]

    assert client.save(prompt(1, 2), tenant=TENANT, fill=fill).n_stored == 2
    assert reasons == ["busy"]


def test_many_threads_of_many_tenants_never_see_a_wrong_byte(make_client: MakeClient) -> None:
    """A pool far too small for them: blocks leave, come back from Redis, and are called back all the time."""
    client = make_client(24, free_target=0.1)
    tenants = [TenantId(f"t{n}") for n in range(3)]
    errors: list[BaseException] = []

    def engine(seed: int) -> None:
        choose = random.Random(seed)
        try:
            for _ in range(150):
                tenant, name, n_blocks = choose.choice(tenants), choose.randrange(4), choose.randrange(1, 9)
                if choose.random() < 0.5:
                    save(client, prompt(name, n_blocks), tenant=tenant, wait_s=0.02)
                else:
                    take(client, prompt(name, n_blocks), tenant=tenant, deadline_s=choose.choice([0.0, 0.01, 5.0]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=engine, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []

    def settled() -> bool:
        client.set_policies({})  # a turn of the seam
        return not (client.core.loads or client.core.leaving or client.core.recalled)

    eventually(settled)
    assert client.core.leases == client.core.filling == client.core.fetching == {}
    assert client.core.blocks_in(BlockState.FREE) + client.core.blocks_in(BlockState.READY) == 24
    assert sum(record.pins for record in client.core.table.records) == 0
