"""Each script of the ledger alone, over the real server."""

from __future__ import annotations

import itertools

import msgspec
import pytest
import redis

from tests.support.redis_server import block_hash, eventually, settings_for
from tiered.cluster.connection import command, connect
from tiered.cluster.directory import Directory
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, RedisUsage, ReserveAnswer, ReserveRequest
from tiered.cluster.scripts import Audit
from tiered.cluster.tenants import Tenants
from tiered.tenancy.policy import TenantPolicy
from tiered.types import NO_HASH, BlockHash, Epoch, NodeId, TenantId

RED, BLUE, GREEN = TenantId("red"), TenantId("blue"), TenantId("green")
PART_BYTES = 4 << 20
SIZE = 100
FOR_LONG = 30.0


class Books:
    """The ledger, and the values a writer would store under its reservations."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self.ledger = RedisLedger(client, keys)
        self.tenants = Tenants(client, keys)

    def limit(self, tenant: TenantId, limit: int | None, **bounds: object) -> None:
        policy = TenantPolicy.model_validate({"tenant": tenant, "redis_limit_bytes": limit, **bounds})
        assert self.tenants.replace(policy) or self.tenants.create(policy)

    def reserve(
        self,
        name: object,
        tenant: TenantId = RED,
        *,
        size: int = SIZE,
        depth: int = 0,
        parent: object = None,
        ttl_s: float = FOR_LONG,
    ) -> ReserveAnswer:
        hangs_on = NO_HASH if parent is None else block_hash(parent)
        request = ReserveRequest(block_hash(name), tenant, size, depth, hangs_on)
        return self.ledger.reserve([request], ttl_s=ttl_s)[0]

    def write(self, name: object, *, size: int = SIZE) -> None:
        command(self.client, "SET", self.keys.block(block_hash(name)), b"x" * size)

    def commit(self, name: object, tenant: TenantId = RED, *, size: int = SIZE) -> bool:
        return self.ledger.commit([(block_hash(name), tenant, size)])[0]

    def store(
        self,
        name: object,
        tenant: TenantId = RED,
        *,
        size: int = SIZE,
        depth: int = 0,
        parent: object = None,
    ) -> ReserveAnswer:
        answer = self.reserve(name, tenant, size=size, depth=depth, parent=parent)
        if answer.reserved:
            self.write(name, size=size)
            assert self.commit(name, tenant, size=size)
        return answer

    def stored(self, *names: object) -> list[bool]:
        return [command(self.client, "EXISTS", self.keys.block(block_hash(name))) == 1 for name in names]

    def order(self, tenant: TenantId = RED) -> list[BlockHash]:
        """Of leaving."""
        members: list[BlockHash] = command(self.client, "ZRANGE", self.keys.tenant_blocks(tenant), 0, -1)
        return members

    def chain(self, name: str, n_blocks: int, tenant: TenantId = RED) -> list[str]:
        """Store a prefix from its first block on; its names."""
        names = [f"{name}/{depth}" for depth in range(n_blocks)]
        for depth, own in enumerate(names):
            self.store(own, tenant, depth=depth, parent=names[depth - 1] if depth else None)
        return names

    def used(self, *tenants: TenantId) -> list[int]:
        usage = self.ledger.usage()
        return [usage[tenant].used_bytes if tenant in usage else 0 for tenant in tenants]

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
    assert books.ledger.total() == RedisUsage(SIZE, 0, 2)
    books.check()


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
    items = [(block_hash(depth), RED, SIZE) for depth in range(5)]
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


def test_in_a_full_tier_the_tenant_furthest_above_its_share_gives(books: Books) -> None:
    books.tenants.set_capacity(6 * SIZE)
    for i in range(5):
        books.store(f"red {i}", RED)
    books.store("blue", BLUE)
    assert books.store("blue 2", BLUE) is ReserveAnswer.RESERVED_AFTER_RECLAIMING
    assert books.store("blue 3", BLUE) is ReserveAnswer.RESERVED_AFTER_RECLAIMING
    assert books.used(RED, BLUE) == [3 * SIZE, 3 * SIZE]
    # Between equals the asker gives, so nobody is flushed by who comes last.
    assert books.store("blue 4", BLUE) is ReserveAnswer.RESERVED_AFTER_EVICTING_OWN
    assert books.used(RED, BLUE) == [3 * SIZE, 3 * SIZE]
    books.check()


def test_a_share_is_by_weight(books: Books) -> None:
    books.tenants.set_capacity(6 * SIZE)
    books.limit(RED, None, weight=2.0)
    for i in range(6):
        books.store(f"red {i}", RED)
    answers = [books.store(f"blue {i}", BLUE) for i in range(3)]
    assert answers == [ReserveAnswer.RESERVED_AFTER_RECLAIMING] * 2 + [ReserveAnswer.RESERVED_AFTER_EVICTING_OWN]
    assert books.used(RED, BLUE) == [4 * SIZE, 2 * SIZE]


def test_a_changed_weight_counts_from_the_next_write_on(books: Books) -> None:
    books.tenants.set_capacity(6 * SIZE)
    for i in range(3):
        books.store(f"red {i}", RED)
        books.store(f"blue {i}", BLUE)
    books.limit(RED, None, weight=0.5)
    assert books.store("blue 3", BLUE) is ReserveAnswer.RESERVED_AFTER_RECLAIMING
    assert books.used(RED, BLUE) == [2 * SIZE, 4 * SIZE]


def test_what_is_reserved_for_a_tenant_is_not_taken_by_another(books: Books) -> None:
    books.tenants.set_capacity(4 * SIZE)
    books.limit(RED, None, redis_reserved_bytes=4 * SIZE)
    for i in range(4):
        books.store(f"red {i}", RED)
    assert books.reserve("blue", BLUE) is ReserveAnswer.REFUSED_FULL
    assert books.used(RED, BLUE) == [4 * SIZE, 0]


def test_a_value_larger_than_the_tier_is_refused_and_nothing_leaves(books: Books) -> None:
    books.tenants.set_capacity(3 * SIZE)
    books.store("a")
    assert books.reserve("e", size=4 * SIZE) is ReserveAnswer.REFUSED_FULL
    assert books.stored("a") == [True]


def test_a_tenant_that_refuses_gives_nothing_of_its_own_when_the_tier_is_full(books: Books) -> None:
    books.tenants.set_capacity(2 * SIZE)
    books.limit(RED, None, over_quota="refuse")
    books.store("a")
    books.store("b")
    assert books.reserve("c") is ReserveAnswer.REFUSED_FULL
    assert books.stored("a", "b") == [True, True]


def test_tenants_that_share_a_value_pay_equal_parts_and_the_last_one_out_deletes(books: Books) -> None:
    books.store("a", RED)
    books.store("a", BLUE)
    books.ledger.touch([block_hash("a")], GREEN)
    assert books.used(RED, BLUE, GREEN) == [34, 33, 33]
    assert books.ledger.clear(RED) == 1
    assert books.used(RED, BLUE, GREEN) == [0, 50, 50]
    assert books.ledger.clear(GREEN) == books.ledger.clear(BLUE) == 1
    assert books.stored("a") == [False]
    assert books.ledger.usage() == {}
    assert command(books.client, "EXISTS", books.keys.standings()) == 0


def test_who_has_no_room_for_its_part_reads_as_a_guest(books: Books) -> None:
    books.limit(BLUE, SIZE // 2 - 1)
    books.store("a", RED)
    assert books.reserve("a", BLUE) is ReserveAnswer.ALREADY_THERE
    assert books.ledger.touch([block_hash("a")], BLUE) == 1
    assert books.used(RED, BLUE) == [SIZE, 0]


@pytest.mark.parametrize("over_quota", ["evict_own", "refuse"])
def test_a_block_that_making_room_for_a_part_of_it_has_cost_is_reserved_anew(books: Books, over_quota: str) -> None:
    """RED asks for what BLUE alone has; for its part RED lets go of what both have, and BLUE gives it for that."""
    books.limit(RED, 100)
    books.limit(BLUE, 150, over_quota=over_quota)
    for tenant in (BLUE, RED):
        books.store("shared", tenant, size=100, depth=9)  # deeper is older
    books.store("asked for", BLUE, size=100)
    books.store("own", RED, size=50)
    assert books.used(RED, BLUE) == [100, 150]
    assert books.store("asked for", RED, size=100) is ReserveAnswer.RESERVED_AFTER_EVICTING_OWN
    assert books.stored("shared", "asked for", "own") == [True, True, False]
    assert books.used(RED, BLUE) == [100, 100]
    books.check()


def test_a_block_that_making_room_has_cost_and_that_does_not_fit_then_is_refused(books: Books) -> None:
    books.limit(RED, 100)
    books.limit(BLUE, 400)
    for tenant in (BLUE, RED):
        books.store("shared", tenant, size=200, depth=9)
    books.store("asked for", BLUE, size=200, depth=5)
    books.store("large", BLUE, size=100)
    assert books.used(RED, BLUE) == [100, 400]
    assert books.reserve("asked for", RED, size=200) is ReserveAnswer.REFUSED_QUOTA
    assert books.stored("shared", "asked for") == [True, False]
    books.check()


def test_letting_go_never_presses_another_above_its_limit(books: Books) -> None:
    """BLUE, at its limit, gives what it alone uses for its larger part of what RED lets go of."""
    books.store("shared", RED)
    books.limit(BLUE, SIZE + SIZE // 2)
    books.store("shared", BLUE)
    books.store("own", BLUE)
    assert books.used(RED, BLUE) == [SIZE // 2, SIZE + SIZE // 2]
    books.ledger.clear(RED)
    assert books.used(RED, BLUE) == [0, SIZE]
    assert books.stored("shared", "own") == [True, False]
    books.check()


def test_what_nobody_has_room_for_leaves(books: Books) -> None:
    books.limit(BLUE, SIZE // 2)
    books.store("shared", RED)
    books.store("shared", BLUE)
    books.ledger.clear(RED)
    assert books.stored("shared") == [False]
    assert books.ledger.usage() == {}


def test_a_block_never_takes_the_place_of_one_that_it_hangs_on(books: Books) -> None:
    books.limit(RED, 4 * SIZE)
    books.store("old")
    names = books.chain("p", 4)
    assert books.stored("old", *names) == [False, True, True, True, True]
    assert books.reserve("p/4", depth=4, parent="p/3") is ReserveAnswer.REFUSED_QUOTA
    assert all(books.stored(*names))


def test_a_new_block_keeps_what_it_hangs_on_from_leaving_before_it(books: Books) -> None:
    names = books.chain("p", 3)
    cut = [block_hash(name) for name in names]
    past = {name: command(books.client, "ZSCORE", books.keys.tenant_blocks(RED), name) for name in cut}
    for name, score in past.items():  # as if they had been stored an hour ago
        command(books.client, "ZADD", books.keys.tenant_blocks(RED), float(score) - 3_600 * 100 * 262_144, name)
    books.store("p/3", depth=3, parent="p/2")
    line = [block_hash(f"p/{depth}") for depth in (3, 2, 1, 0)]
    assert [name for name in books.order() if name in line] == line
    for name, score in past.items():
        assert command(books.client, "ZSCORE", books.keys.tenant_blocks(RED), name) >= score


def test_a_prefix_longer_than_one_call_is_touched_whole(books: Books) -> None:
    names = books.chain("p", 3)
    asked = [block_hash(name) for name in names] + [block_hash(f"absent {i}") for i in range(9_000)]
    assert books.ledger.touch(asked, RED) == 3
    assert books.ledger.remove(asked) == 3


def test_a_pinned_prefix_survives_pressure_inside_its_tenants_limit(books: Books) -> None:
    books.limit(RED, 4 * SIZE)
    pinned = books.chain("system", 2)
    assert books.ledger.pin([block_hash(name) for name in pinned], RED, lease_s=FOR_LONG) == 2
    for i in range(10):
        assert books.store(i).reserved
    books.ledger.touch([block_hash(name) for name in pinned], RED)  # a use does not shorten it
    assert all(books.stored(*pinned))
    assert books.ledger.pin(books.order()[:2], RED, lease_s=FOR_LONG) == 2  # and now all of it is pinned
    assert books.reserve("more") is ReserveAnswer.REFUSED_QUOTA
    assert books.ledger.unpin([block_hash(name) for name in pinned], RED) == 2
    eventually(lambda: books.store("more").reserved)
    assert books.stored(*pinned) == [True, False]


def test_a_pin_ends_with_its_lease(books: Books) -> None:
    books.limit(RED, SIZE)
    books.store("a")
    books.ledger.pin([block_hash("a")], RED, lease_s=0.05)
    eventually(lambda: books.store("b").reserved)


def test_what_is_idle_for_too_long_goes_and_what_is_used_stays(books: Books) -> None:
    books.store("idle")
    books.store("used")
    eventually(
        lambda: books.ledger.touch([block_hash("used")], RED) == 1 and books.ledger.expire(RED, idle_s=0.1) == 1
    )
    assert books.stored("idle", "used") == [False, True]
    assert books.used(RED) == [SIZE]


def test_an_audit_settles_what_records_and_values_do_not_agree_on(books: Books) -> None:
    names = books.chain("p", 3)
    books.store("lost")
    books.store("short")
    books.reserve("expired", ttl_s=0.001)
    command(books.client, "DEL", books.keys.block(block_hash("lost")))
    command(books.client, "SET", books.keys.block(block_hash("short")), b"x")
    command(books.client, "SET", books.keys.block(block_hash("stray")), b"x" * 7)
    command(books.client, "ZREM", books.keys.tenant_blocks(RED), block_hash(names[0]))
    every = [block_hash(name) for name in (*names, "lost", "short", "expired", "stray", "never")]
    eventually(lambda: server_ms(books.client) > command(books.client, "ZSCORE", books.keys.reservations(), every[5]))
    assert books.ledger.audit(every, settle=True) == [
        Audit(
            1, lost=2, stray=1, relisted=1, blocks=3, stored_bytes=3 * SIZE, charged={RED: 3 * SIZE}, listed={RED: 3}
        )
    ]
    assert books.ledger.usage() == {RED: RedisUsage(3 * SIZE, 0, 3)}
    books.check()


def test_an_audit_names_what_nobody_can_match_any_more_and_leaves_it(books: Books) -> None:
    names = books.chain("p", 3)
    books.store("hot child", depth=1, parent="hot parent")
    directory = Directory(books.client, books.keys)
    directory.announce(NodeId("n"), Epoch(1), stored=[block_hash("hot parent")], removed=[])
    every = [block_hash(name) for name in (*names, "hot child")]
    assert books.ledger.audit(every, settle=True)[0].orphans == ()
    books.ledger.remove([block_hash(names[0])])
    orphan = (block_hash(names[1]), block_hash(names[0]))
    assert books.ledger.audit(every, settle=True)[0].orphans == (orphan,)
    directory.announce(NodeId("n"), Epoch(1), stored=[], removed=[block_hash("hot parent")])
    assert books.ledger.audit(every, settle=True)[0].orphans == (
        orphan,
        (block_hash("hot child"), block_hash("hot parent")),
    )
    assert books.stored(*names, "hot child") == [False, True, True, True]


def test_a_large_value_lies_in_parts_that_live_and_die_together(books: Books) -> None:
    size = 2 * PART_BYTES + 5
    parts = [books.keys.block(block_hash("a")) + suffix for suffix in (b"", b":1", b":2")]
    assert books.reserve("a", size=size).reserved
    for key, n_bytes in zip(parts, (PART_BYTES, PART_BYTES, 4), strict=True):
        command(books.client, "SET", key, b"x" * n_bytes, "PX", 60_000)
    assert not books.commit("a", size=size)
    assert command(books.client, "EXISTS", *parts) == 0
    assert books.reserve("a", size=size).reserved
    for key, n_bytes in zip(parts, (PART_BYTES, PART_BYTES, 5), strict=True):
        command(books.client, "SET", key, b"x" * n_bytes, "PX", 60_000)
    assert books.commit("a", size=size)
    assert [command(books.client, "PTTL", key) for key in parts] == [-1, -1, -1]
    command(books.client, "DEL", parts[1])
    assert books.ledger.audit([block_hash("a")], settle=True)[0].lost == 1
    assert command(books.client, "EXISTS", *parts) == 0


def test_a_lowered_limit_is_reached_in_bounded_steps(books: Books) -> None:
    n_blocks = 300
    requests = [ReserveRequest(block_hash(i), RED, SIZE, i) for i in range(n_blocks)]
    books.ledger.reserve(requests, ttl_s=FOR_LONG)
    for i in range(n_blocks):
        books.write(i)
    assert all(books.ledger.commit([(request.block_hash, RED, SIZE) for request in requests]))
    books.limit(RED, 10 * SIZE)
    steps = []
    while not books.reserve("new").reserved:
        steps.append(books.ledger.usage()[RED].blocks)
    assert all(before - after <= 128 for before, after in itertools.pairwise([n_blocks, *steps]))
    assert len(steps) == 2
    assert books.ledger.usage()[RED].blocks == 9
    books.check()


def test_a_tenant_named_like_a_field_of_the_limits_is_only_a_tenant(books: Books) -> None:
    for name in ("C", "U", "P", "capacity"):
        books.limit(TenantId(name), SIZE)
        assert books.store(f"block of {name}", TenantId(name)) is ReserveAnswer.RESERVED
    assert books.store("big", RED, size=50 * SIZE) is ReserveAnswer.RESERVED
    assert books.ledger.total() == RedisUsage(54 * SIZE, 0, 5)


def test_a_guests_touch_counts_for_one_who_pays(books: Books) -> None:
    books.limit(RED, 0)
    books.store("old", BLUE)
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


def test_what_a_later_release_appended_to_a_record_is_kept(books: Books) -> None:
    """Its record is no damage, so its block neither leaves nor loses what this release knows nothing of."""
    books.chain("a", 2)
    key = books.keys.meta(block_hash("a/0"))
    more = msgspec.msgpack.encode({"later": 1})
    seven, eight = b"\x97", b"\x98"  # how a MessagePack array of so many begins
    packed: bytes = command(books.client, "GET", key)
    assert packed[:1] == seven
    command(books.client, "SET", key, eight + packed[1:] + more)
    directory = Directory(books.client, books.keys)
    directory.announce(NodeId("w1"), Epoch(1), stored=[block_hash("a/0")], removed=())
    assert books.store("a/0", BLUE) is ReserveAnswer.ALREADY_THERE
    assert books.stored("a/0", "a/1") == [True, True]
    [found] = directory.lookup([block_hash("a/0")])
    assert (found.in_redis, [owner.node for owner in found.owners]) == (True, ["w1"])
    packed = command(books.client, "GET", key)
    assert (packed[:1], packed[-len(more) :]) == (eight, more)
    assert books.used(RED, BLUE) == [SIZE + SIZE // 2, SIZE // 2]
    books.check()
