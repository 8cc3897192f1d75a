"""Each script of the ledger alone, over the real server."""

from __future__ import annotations

import itertools

import pytest
import redis

from tests.support.redis_server import block_hash, eventually, settings_for
from tiered.cluster.connection import command, connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, RedisUsage, ReserveAnswer, ReserveRequest
from tiered.cluster.tenants import Tenants
from tiered.tenancy.policy import TenantPolicy
from tiered.types import BlockHash, TenantId

RED, BLUE = TenantId("red"), TenantId("blue")
SIZE = 100
FOR_LONG = 30.0


class Books:
    """The ledger, and the values a writer would store under its reservations."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self.ledger = RedisLedger(client, keys)
        self.tenants = Tenants(client, keys)

    def limit(self, tenant: TenantId, limit: int | None, *, over_quota: str = "evict_own") -> None:
        policy = TenantPolicy.model_validate({"tenant": tenant, "redis_limit_bytes": limit, "over_quota": over_quota})
        assert self.tenants.replace(policy) or self.tenants.create(policy)

    def reserve(
        self,
        name: object,
        tenant: TenantId = RED,
        *,
        size: int = SIZE,
        depth: int = 0,
        ttl_s: float = FOR_LONG,
    ) -> ReserveAnswer:
        request = ReserveRequest(block_hash(name), tenant, size, depth)
        return self.ledger.reserve([request], ttl_s=ttl_s)[0]

    def write(self, name: object, *, size: int = SIZE) -> None:
        command(self.client, "SET", self.keys.block(block_hash(name)), b"x" * size)

    def commit(self, name: object, tenant: TenantId = RED) -> bool:
        return self.ledger.commit([(block_hash(name), tenant)])[0]

    def store(self, name: object, tenant: TenantId = RED, *, size: int = SIZE, depth: int = 0) -> ReserveAnswer:
        answer = self.reserve(name, tenant, size=size, depth=depth)
        if answer.reserved:
            self.write(name, size=size)
            assert self.commit(name, tenant)
        return answer

    def stored(self, *names: object) -> list[bool]:
        return [command(self.client, "EXISTS", self.keys.block(block_hash(name))) == 1 for name in names]

    def order(self, tenant: TenantId = RED) -> list[BlockHash]:
        """Of leaving."""
        members: list[BlockHash] = command(self.client, "ZRANGE", self.keys.tenant_blocks(tenant), 0, -1)
        return members

    def check(self) -> None:
        """I5, in full: charges equal the records, the sums equal the charges, Redis holds what is charged."""
        prefix = self.keys.block(BlockHash(b""))
        values = [key for key in self.client.scan_iter(match=b"*:b:*") if key.startswith(prefix)]
        usage, total = self.ledger.usage(), self.ledger.total()
        assert sum(use.used_bytes for use in usage.values()) == total.used_bytes
        assert sum(use.pending_bytes for use in usage.values()) == total.pending_bytes
        held = sum(command(self.client, "STRLEN", key) for key in values if command(self.client, "TTL", key) < 0)
        assert held >= total.used_bytes
        assert held <= total.used_bytes + total.pending_bytes
        assert command(self.client, "ZCARD", self.keys.reservations()) > 0 or total.pending_bytes == 0


def server_ms(client: redis.Redis) -> float:
    seconds, microseconds = command(client, "TIME")
    return float(seconds) * 1000 + float(microseconds) / 1000


@pytest.fixture
def books(redis_client: redis.Redis, redis_keys: Keys) -> Books:
    return Books(redis_client, redis_keys)


def test_bytes_are_pending_until_the_value_is_there_and_used_from_then_on(books: Books) -> None:
    assert books.reserve("a") is ReserveAnswer.RESERVED
    assert books.ledger.usage() == {RED: RedisUsage(0, SIZE, 0)}
    books.write("a")
    books.check()
    assert books.commit("a")
    assert books.ledger.usage() == {RED: RedisUsage(SIZE, 0, 1)}
    assert books.ledger.total() == RedisUsage(SIZE, 0, 1)
    books.check()


def test_a_block_is_stored_once_whoever_asks(books: Books) -> None:
    assert books.reserve("a") is ReserveAnswer.RESERVED
    assert books.reserve("a", BLUE) is ReserveAnswer.PENDING_ELSEWHERE
    books.write("a")
    assert books.commit("a")
    assert books.reserve("a", BLUE) is ReserveAnswer.ALREADY_THERE
    assert books.ledger.usage() == {RED: RedisUsage(SIZE, 0, 1)}


def test_a_committed_value_no_longer_expires(books: Books) -> None:
    books.reserve("a")
    command(books.client, "SET", books.keys.block(block_hash("a")), b"x" * SIZE, "PX", 60_000)
    assert books.commit("a")
    assert command(books.client, "PTTL", books.keys.block(block_hash("a"))) == -1


def test_a_value_that_is_missing_or_short_is_not_committed(books: Books) -> None:
    books.reserve("missing")
    assert not books.commit("missing")
    books.reserve("short")
    books.write("short", size=SIZE - 1)
    assert not books.commit("short")
    assert books.stored("short") == [False]
    assert books.ledger.usage() == {}


def test_an_expired_reservation_gives_its_bytes_back_when_the_next_one_is_made(books: Books) -> None:
    books.reserve("a", ttl_s=0.001)
    books.write("a")
    eventually(
        lambda: (
            books.reserve("b") is ReserveAnswer.PENDING_ELSEWHERE
            and books.ledger.usage() == {RED: RedisUsage(0, SIZE, 0)}
        )
    )
    assert books.stored("a") == [False]


def test_a_commit_that_comes_too_late_stores_nothing_even_if_nobody_noticed(books: Books) -> None:
    books.reserve("a", ttl_s=0.001)
    books.write("a")
    expires_ms = command(books.client, "ZSCORE", books.keys.reservations(), block_hash("a"))
    eventually(lambda: server_ms(books.client) > expires_ms)
    assert not books.commit("a")
    assert books.stored("a") == [False]
    assert books.ledger.usage() == {}


def test_a_commit_after_the_reservation_ended_stores_nothing(books: Books) -> None:
    books.reserve("a", ttl_s=0.001)
    books.write("a")
    eventually(lambda: books.reserve("b") is ReserveAnswer.PENDING_ELSEWHERE and not books.stored("a")[0])
    books.write("a")  # Late.
    assert not books.commit("a")
    assert books.stored("a") == [False]
    assert books.ledger.usage() == {RED: RedisUsage(0, SIZE, 0)}


def test_a_late_writer_does_not_disturb_the_next_reservation_of_another(books: Books) -> None:
    books.reserve("a", RED, ttl_s=0.001)
    eventually(lambda: books.reserve("a", BLUE).reserved)
    books.write("a")
    assert not books.commit("a", RED)
    assert books.ledger.abort([(block_hash("a"), RED)]) == 0
    assert books.stored("a") == [True]
    assert books.commit("a", BLUE)
    assert books.ledger.usage() == {BLUE: RedisUsage(SIZE, 0, 1)}


def test_abort_gives_back_a_reservation_and_never_a_committed_block(books: Books) -> None:
    books.store("a")
    books.reserve("b")
    books.write("b")
    assert books.ledger.abort([(block_hash("a"), RED), (block_hash("b"), RED)]) == 1
    assert books.stored("a", "b") == [True, False]
    assert books.ledger.usage() == {RED: RedisUsage(SIZE, 0, 1)}
    books.check()


def test_over_its_limit_a_tenant_evicts_its_own_oldest_blocks_only(books: Books) -> None:
    books.limit(RED, 3 * SIZE)
    books.store("blue", BLUE)
    for name in "abc":
        assert books.store(name) is ReserveAnswer.RESERVED
    # Scores have ticks of 10 ms; within one, the touched block may not be the newest yet.
    eventually(lambda: books.ledger.touch([block_hash("a")], RED) == 1 and books.order()[2] == block_hash("a"))
    assert books.store("d", size=2 * SIZE) is ReserveAnswer.RESERVED_AFTER_EVICTING_OWN
    assert books.stored("a", "b", "c", "d", "blue") == [True, False, False, True, True]
    assert books.ledger.usage()[RED] == RedisUsage(3 * SIZE, 0, 2)
    books.check()


def test_of_one_prefix_the_tail_leaves_first(books: Books) -> None:
    items = [(block_hash(depth), RED) for depth in range(5)]
    for depth in range(5):
        books.reserve(depth, depth=depth)
        books.write(depth)
    assert books.ledger.commit(items) == [True] * 5
    tail_first = [block_hash(depth) for depth in (4, 3, 2, 1, 0)]
    assert books.order() == tail_first
    books.ledger.touch(list(reversed(tail_first)), RED)
    assert books.order() == tail_first


def test_pending_bytes_of_others_are_never_evicted(books: Books) -> None:
    books.limit(RED, 2 * SIZE)
    books.reserve("a")
    books.reserve("b")
    assert books.reserve("c") is ReserveAnswer.REFUSED_QUOTA
    assert books.ledger.usage() == {RED: RedisUsage(0, 2 * SIZE, 0)}


def test_a_tenant_that_refuses_keeps_what_it_has(books: Books) -> None:
    books.limit(RED, SIZE, over_quota="refuse")
    assert books.store("a") is ReserveAnswer.RESERVED
    assert books.store("b") is ReserveAnswer.REFUSED_QUOTA
    assert books.stored("a") == [True]


def test_a_block_larger_than_the_limit_evicts_nothing(books: Books) -> None:
    books.limit(RED, 2 * SIZE)
    books.store("a")
    assert books.reserve("b", size=3 * SIZE) is ReserveAnswer.REFUSED_QUOTA
    assert books.stored("a") == [True]


def test_the_default_limit_holds_for_whoever_has_none_of_its_own(books: Books) -> None:
    books.limit(TenantId("default"), SIZE, over_quota="refuse")
    books.limit(BLUE, 2 * SIZE)
    for name, tenant in itertools.product("ab", (RED, BLUE)):
        books.store(f"{name}-{tenant}", tenant)
    assert books.stored("a-red", "b-red", "a-blue", "b-blue") == [True, False, True, True]
    # Its own policy decides what happens over its own limit.
    assert books.reserve("c", BLUE) is ReserveAnswer.RESERVED_AFTER_EVICTING_OWN


def test_a_full_tier_takes_from_the_asker_or_from_nobody(books: Books) -> None:
    books.tenants.set_capacity(3 * SIZE)
    for name in "ab":
        books.store(name, RED)
    books.store("c", BLUE)
    assert books.reserve("d", BLUE, size=2 * SIZE) is ReserveAnswer.REFUSED_FULL
    assert books.stored("a", "b", "c") == [True, True, True]
    assert books.store("d", BLUE) is ReserveAnswer.RESERVED_AFTER_EVICTING_OWN
    assert books.stored("a", "b", "c", "d") == [True, True, False, True]
    assert books.reserve("e", size=4 * SIZE) is ReserveAnswer.REFUSED_FULL


def test_a_lowered_limit_is_reached_in_bounded_steps(books: Books) -> None:
    requests = [ReserveRequest(block_hash(i), RED, SIZE, i) for i in range(100)]
    books.ledger.reserve(requests, ttl_s=FOR_LONG)
    for i in range(100):
        books.write(i)
    assert all(books.ledger.commit([(request.block_hash, RED) for request in requests]))
    books.limit(RED, 10 * SIZE)
    blocks = []
    for _ in range(3):
        blocks.append((books.reserve("new"), books.ledger.usage()[RED].blocks))
    assert blocks == [
        (ReserveAnswer.REFUSED_QUOTA, 68),
        (ReserveAnswer.REFUSED_QUOTA, 36),
        (ReserveAnswer.RESERVED_AFTER_EVICTING_OWN, 9),
    ]
    books.check()


def test_a_tenant_named_like_a_field_of_the_limits_is_only_a_tenant(books: Books) -> None:
    for name in ("C", "U", "P", "capacity"):
        books.limit(TenantId(name), SIZE)
        assert books.store(f"block of {name}", TenantId(name)) is ReserveAnswer.RESERVED
    assert books.store("big", RED, size=50 * SIZE) is ReserveAnswer.RESERVED
    assert books.ledger.total() == RedisUsage(54 * SIZE, 0, 5)


def test_a_touch_reaches_a_shared_block_charged_to_another_tenant(books: Books) -> None:
    books.store("old", BLUE)
    books.ledger.touch([block_hash("old")], BLUE)
    before = command(books.client, "ZSCORE", books.keys.tenant_blocks(BLUE), block_hash("old"))
    eventually(
        lambda: (
            books.ledger.touch([block_hash("old"), block_hash("unknown")], RED) == 1
            and command(books.client, "ZSCORE", books.keys.tenant_blocks(BLUE), block_hash("old")) > before
        )
    )
    assert books.order(RED) == []


def test_removing_forgets_value_state_and_charge_but_no_running_reservation(books: Books) -> None:
    books.store("a")
    books.store("b", BLUE)
    books.reserve("c")
    books.write("c")
    command(books.client, "SET", books.keys.block(block_hash("stray")), b"x")
    assert books.ledger.remove([block_hash(name) for name in ("a", "b", "c", "stray", "none")]) == 2
    assert books.stored("a", "b", "c", "stray") == [False, False, True, False]
    assert books.ledger.usage() == {RED: RedisUsage(0, SIZE, 0)}
    assert books.commit("c")
    assert command(books.client, "EXISTS", books.keys.meta(block_hash("a"))) == 0


def test_a_value_that_the_server_lost_is_settled_and_stored_again(books: Books) -> None:
    books.store("a", BLUE)
    command(books.client, "DEL", books.keys.block(block_hash("a")))
    assert books.store("a", RED) is ReserveAnswer.RESERVED
    assert books.ledger.usage() == {RED: RedisUsage(SIZE, 0, 1)}
    assert books.order(BLUE) == []


def test_a_server_that_forgot_the_scripts_is_given_them_again(books: Books) -> None:
    # Flushing the shared server's scripts is harmless for exactly the reason under test.
    books.store("a")
    command(books.client, "SCRIPT", "FLUSH")
    requests = [ReserveRequest(block_hash(name), RED, SIZE, 0) for name in "abc"]
    assert books.ledger.reserve(requests, ttl_s=FOR_LONG) == [
        ReserveAnswer.ALREADY_THERE,
        ReserveAnswer.RESERVED,
        ReserveAnswer.RESERVED,
    ]


def test_a_full_server_still_gives_back(private_redis_server: EmbeddedServer) -> None:
    client = connect(settings_for(private_redis_server), timeout_s=5.0)
    books = Books(client, Keys())
    books.store("a")
    books.reserve("b")
    command(client, "CONFIG", "SET", "maxmemory", 1)
    assert books.ledger.abort([(block_hash("b"), RED)]) == 1
    assert books.ledger.remove([block_hash("a")]) == 1
    assert books.ledger.usage() == {}
    client.close()
