"""What a sweep notes as lost, and how the list is taken up: alone, raced, and bounded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.support.redis_server import block_hash, eventually
from tiered.cluster import scripts
from tiered.cluster.connection import command
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.cluster.lost import LostCopies
from tiered.codec.frame import BlockHeader, encode_header
from tiered.tenancy.copies import NO_SECONDS, TwoCopies
from tiered.types import NO_HASH, BlockHash, Epoch, NodeId, TenantId

RED, BLUE = TenantId("red"), TenantId("blue")
A, B = NodeId("a"), NodeId("b")
RED_ASKS = TwoCopies(exceptions=frozenset({RED}))
SCOPE_ID = b"s" * 32
H = [block_hash(i) for i in range(40)]


@pytest.fixture
def directory(redis_client: redis.Redis, redis_keys: Keys) -> Directory:
    return Directory(redis_client, redis_keys)


@pytest.fixture
def lost(redis_client: redis.Redis, redis_keys: Keys) -> LostCopies:
    return LostCopies(redis_client, redis_keys)


def store(client: redis.Redis, keys: Keys, hashes: list[BlockHash], tenant: TenantId = RED) -> None:
    """One prefix of values, committed."""
    ledger = RedisLedger(client, keys)
    for depth, h in enumerate(hashes):
        value = encode_header(BlockHeader(h, SCOPE_ID, "none", 4, 4, b"c" * 16)) + b"byte"
        parent = hashes[depth - 1] if depth else NO_HASH
        ledger.reserve([ReserveRequest(h, tenant, len(value), depth, parent)], ttl_s=30)
        command(client, "SET", keys.of(h).block(h), value)
        assert ledger.commit([(h, tenant, len(value))]) == [True]


def server_ms(client: redis.Redis) -> int:
    seconds, micros = command(client, "TIME")
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.parametrize("partitions", [1, 8])
def test_a_sweep_notes_what_asks_for_two_and_is_left_in_redis_alone(
    redis_client: redis.Redis, redis_keys: Keys, partitions: int
) -> None:
    keys = Keys(redis_keys.namespace, partitions=partitions)
    directory, lost = Directory(redis_client, keys), LostCopies(redis_client, keys)
    store(redis_client, keys, H[:4])  # of which the first two are on another node too
    store(redis_client, keys, H[4:8], BLUE)
    directory.announce(A, Epoch(1), stored=H[:12], removed=[])  # the last four are in no Redis
    directory.announce(B, Epoch(2), stored=H[:2], removed=[])
    assert directory.sweep(A, Epoch(1), two=RED_ASKS) == 12
    assert set(lost.take(100, lease_s=30)) == set(H[2:4])
    assert directory.sweep(B, Epoch(2), two=RED_ASKS) == 2
    assert set(lost.take(100, lease_s=30)) == set(H[:2])
    assert lost.counts() == (4, 0)
    lost.done(H[:4])
    assert lost.counts() == (0, 0)


def test_by_default_two_notes_everybodys_but_those_of_who_asks_for_one(
    directory: Directory, lost: LostCopies, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    store(redis_client, redis_keys, H[:2])
    store(redis_client, redis_keys, H[2:4], BLUE)
    directory.announce(A, Epoch(1), stored=H[:4], removed=[])
    directory.sweep(A, Epoch(1), two=TwoCopies(by_default=True, exceptions=frozenset({RED})))
    assert set(lost.take(100, lease_s=30)) == set(H[2:4])


def test_where_nobody_asks_for_two_nothing_is_noted(
    directory: Directory, lost: LostCopies, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    store(redis_client, redis_keys, H[:2])
    directory.announce(A, Epoch(1), stored=H[:2], removed=[])
    assert directory.sweep(A, Epoch(1), two=NO_SECONDS) == 2
    assert lost.counts() == (0, 0)


def test_a_stamp_of_the_nodes_next_life_is_a_place_and_nothing_is_lost(
    directory: Directory, lost: LostCopies, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    store(redis_client, redis_keys, H[:2])
    directory.announce(A, Epoch(1), stored=H[:2], removed=[])
    directory.announce(A, Epoch(2), stored=H[:1], removed=[])
    directory.sweep(A, Epoch(1), two=RED_ASKS)
    assert lost.take(100, lease_s=30) == H[1:2]


def test_the_list_is_bounded_the_oldest_go_first_and_they_are_counted(
    directory: Directory,
    lost: LostCopies,
    redis_client: redis.Redis,
    redis_keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scripts, "LOST_MAX", 5)
    store(redis_client, redis_keys, H[:12])
    for epoch, part in ((1, H[:4]), (2, H[4:8]), (3, H[8:12])):
        directory.announce(A, Epoch(epoch), stored=part, removed=[])
    for epoch in (1, 2, 3):
        before = server_ms(redis_client)
        eventually(lambda before=before: server_ms(redis_client) > before)  # type: ignore[misc]
        directory.sweep(A, Epoch(epoch), two=RED_ASKS)
    assert lost.counts() == (5, 7)
    assert set(H[8:12]) < set(lost.take(10, lease_s=1))
    assert command(redis_client, "PTTL", redis_keys.lost()) > 0


def test_many_takers_get_each_block_once_and_after_the_lease_again(
    directory: Directory, lost: LostCopies, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    store(redis_client, redis_keys, H)
    directory.announce(A, Epoch(1), stored=H, removed=[])
    directory.sweep(A, Epoch(1), two=RED_ASKS)
    with ThreadPoolExecutor(8) as threads:
        taken = [h for part in threads.map(lambda _: lost.take(5, lease_s=0.5), range(16)) for h in part]
    assert sorted(taken) == sorted(H)
    lost.done(H[:10])
    eventually(lambda: len(lost.take(100, lease_s=0.0)) == 30)
    lost.put_back(H[:20], after_s=30)  # those that are done do not come back by it
    assert sorted(lost.take(100, lease_s=30)) == sorted(H[20:])
    assert lost.counts() == (30, 0)


@pytest.mark.parametrize("partitions", [1, 8])
def test_the_way_back_is_the_whole_prefix_or_none(
    redis_client: redis.Redis, redis_keys: Keys, partitions: int
) -> None:
    keys = Keys(redis_keys.namespace, partitions=partitions)
    lost = LostCopies(redis_client, keys)
    store(redis_client, keys, H[:6])
    first, last, absent = lost.lines([H[0], H[5], H[30]])
    assert first is not None
    assert last is not None
    assert absent is None
    assert (first.hashes, last.hashes) == ((H[0],), tuple(H[:6]))
    assert (last.scope_id, last.tenants, last.where.in_redis) == (SCOPE_ID, (RED,), True)
    command(redis_client, "DEL", keys.of(H[2]).meta(H[2]))
    assert [line is None for line in lost.lines([H[1], H[5]])] == [False, True]
    command(redis_client, "SET", keys.of(H[1]).block(H[1]), b"no header")
    assert lost.lines([H[1]]) == [None]
    assert lost.lines([]) == []


def test_records_that_point_in_a_circle_end_the_way(redis_client: redis.Redis, redis_keys: Keys) -> None:
    lost, ledger = LostCopies(redis_client, redis_keys), RedisLedger(redis_client, redis_keys)
    value = encode_header(BlockHeader(H[0], SCOPE_ID, "none", 4, 4, b"c" * 16)) + b"byte"
    for h, parent in ((H[0], H[1]), (H[1], H[0])):
        ledger.reserve([ReserveRequest(h, RED, len(value), 3, parent)], ttl_s=30)
        command(redis_client, "SET", redis_keys.block(h), value)
        ledger.commit([(h, RED, len(value))])
    [line] = lost.lines([H[0]])
    assert line is None
