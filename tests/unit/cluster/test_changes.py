"""What a reader of the change streams learns, and when it learns that it has missed something."""

from __future__ import annotations

import pytest
import redis

from tests.support.redis_server import block_hash
from tiered.cluster.changes import ENTRIES_MAX, IN_TIER, Change, Changes
from tiered.cluster.connection import command
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys, partition_of
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.types import BlockHash, Epoch, NodeId, TenantId

A = NodeId("node-a")
ONE, TWO = Epoch(1), Epoch(2)
RED, BLUE = TenantId("red"), TenantId("blue")
H = [block_hash(i) for i in range(600)]


@pytest.fixture
def directory(redis_client: redis.Redis, redis_keys: Keys) -> Directory:
    return Directory(redis_client, redis_keys)


@pytest.fixture
def changes(redis_client: redis.Redis, redis_keys: Keys) -> Changes:
    return Changes(redis_client, redis_keys)


def hashes_of(joined: bytes) -> set[bytes]:
    return {joined[i : i + 32] for i in range(0, len(joined), 32)}


def store(client: redis.Redis, keys: Keys, tenant: TenantId, *hashes: BlockHash) -> None:
    ledger = RedisLedger(client, keys)
    ledger.reserve([ReserveRequest(h, tenant, 5, 0) for h in hashes], ttl_s=30)
    for one in hashes:
        command(client, "SET", keys.of(one).block(one), b"12345")
    assert ledger.commit([(h, tenant, 5) for h in hashes]) == [True] * len(hashes)


def test_an_entry_names_the_life_and_what_it_gained_and_lost(directory: Directory, changes: Changes) -> None:
    directory.announce(A, ONE, stored=H[:3], removed=[])
    directory.announce(A, ONE, stored=H[3:4], removed=H[:2])
    first, second = changes.read((0,)).changes
    assert (first.seq, first.node, first.epoch, first.removed) == (1, A, ONE, b"")
    assert hashes_of(first.stored) == set(H[:3])
    assert (second.seq, hashes_of(second.stored), hashes_of(second.removed)) == (2, {H[3]}, set(H[:2]))


def test_what_changes_nothing_is_not_listed(directory: Directory, changes: Changes) -> None:
    directory.announce(A, TWO, stored=H[:2], removed=[])
    for _ in range(2):
        directory.announce(A, TWO, stored=H[:2], removed=H[5:7])
        directory.announce(A, ONE, stored=H[:2], removed=H[:2])  # late, of an older life
    assert changes.positions() == (1,)
    directory.announce(A, TWO, stored=H[1:3], removed=H[5:7])
    assert [hashes_of(change.stored) for change in changes.read((1,)).changes] == [{H[2]}]


def test_a_sweep_lists_all_that_the_life_held(directory: Directory, changes: Changes) -> None:
    directory.announce(A, ONE, stored=H, removed=[])
    directory.announce(A, TWO, stored=H[:10], removed=[])
    at = changes.positions()
    directory.sweep(A, ONE, batch=100)
    swept = changes.read(at).changes
    assert {change.epoch for change in swept} == {ONE}
    assert b"".join(change.stored for change in swept) == b""
    assert hashes_of(b"".join(change.removed for change in swept)) == set(H)
    assert changes.read(at, count=2).changes == swept[:2]


def test_the_tier_lists_what_became_readable_and_what_left(
    redis_client: redis.Redis, redis_keys: Keys, changes: Changes
) -> None:
    ledger = RedisLedger(redis_client, redis_keys)
    ledger.reserve([ReserveRequest(H[9], RED, 5, 0)], ttl_s=30)
    ledger.abort([(H[9], RED)])
    assert changes.positions() == (0,), "a reservation was never readable"
    store(redis_client, redis_keys, RED, *H[:3])
    ledger.commit([(H[0], RED, 5)])
    ledger.touch(H[:2], BLUE)
    ledger.remove(H[1:2])
    ledger.clear(RED)
    seen = changes.read((0,)).changes
    assert {(change.node, change.epoch) for change in seen} == {(IN_TIER, 0)}
    assert [(hashes_of(c.stored), hashes_of(c.removed)) for c in seen] == [
        (set(H[:3]), set()),
        (set(), {H[1]}),
        (set(), {H[2]}),
    ], "what another tenant uses too stays"


def test_each_partition_has_its_own_stream(redis_client: redis.Redis, redis_keys: Keys) -> None:
    keys = Keys(redis_keys.namespace, partitions=4)
    changes = Changes(redis_client, keys)
    Directory(redis_client, keys).announce(A, ONE, stored=H, removed=[])
    store(redis_client, keys, RED, *H[:50])
    seen = changes.read(changes.positions()).changes
    assert seen == ()
    seen = changes.read((0,) * 4).changes
    assert {change.partition for change in seen} == {0, 1, 2, 3}
    for change in seen:
        assert {partition_of(BlockHash(h), 4) for h in hashes_of(change.stored)} == {change.partition}
    hot = b"".join(change.stored for change in seen if change.node == A)
    assert hashes_of(hot) == set(H)
    assert len(hot) == 32 * len(H)


def test_a_reader_that_fell_behind_is_told(directory: Directory, changes: Changes) -> None:
    directory.announce(A, ONE, stored=H[:1], removed=[])
    assert changes.read((0,)).lost == frozenset()
    trim(changes, directory)
    assert changes.read((1,)).lost == {0}
    assert changes.read((0,)).lost == {0}, "nor can one begin in the middle"


def test_a_stream_that_began_anew_is_told_from_the_one_before(
    redis_client: redis.Redis, redis_keys: Keys, directory: Directory, changes: Changes
) -> None:
    directory.announce(A, ONE, stored=H[:1], removed=[])
    directory.announce(A, ONE, stored=H[1:2], removed=[])
    assert [change.seq for change in changes.read((0,)).changes] == [1, 2]
    command(redis_client, "DEL", redis_keys.changes())
    assert changes.read((2,)).lost == {0}, "shorter"
    for i in range(2, 5):
        directory.announce(A, ONE, stored=H[i : i + 1], removed=[])
    assert changes.read((2,)).lost == {0}, "as long, with other entries"
    at = changes.positions()
    assert at == (3,)
    directory.announce(A, ONE, stored=H[9:10], removed=[])
    reading = changes.read(at)
    assert [change.seq for change in reading.changes] == [4]
    assert not reading.lost


def test_a_stream_is_bounded(directory: Directory, changes: Changes, redis_client: redis.Redis) -> None:
    trim(changes, directory)
    key = Keys(directory._keys.namespace).changes()
    assert ENTRIES_MAX <= command(redis_client, "XLEN", key) < ENTRIES_MAX + 200


def test_what_is_held_and_stored_can_be_loaded_whole(
    redis_client: redis.Redis, redis_keys: Keys, directory: Directory, changes: Changes
) -> None:
    directory.announce(A, ONE, stored=H, removed=[])
    directory.announce(A, TWO, stored=H[:2], removed=[])
    store(redis_client, redis_keys, RED, *H[:5])
    store(redis_client, redis_keys, BLUE, *H[5:7])
    assert {h for page in changes.members(A, ONE) for h in page} == set(H)
    assert {h for page in changes.members(A, TWO) for h in page} == set(H[:2])
    assert list(changes.members(A, Epoch(3))) == []
    assert changes.charged_tenants() == [BLUE, RED]
    assert {h for page in changes.stored([RED, BLUE]) for h in page} == set(H[:7])


def trim(changes: Changes, directory: Directory) -> None:
    """Make more entries than a stream keeps."""
    for i in range(ENTRIES_MAX // 2 + 100):
        at = i % 500
        directory.announce(A, TWO, stored=H[at : at + 1], removed=[])
        directory.announce(A, TWO, stored=[], removed=H[at : at + 1])


def test_a_change_is_the_same_whoever_reads_it(directory: Directory, changes: Changes) -> None:
    directory.announce(A, ONE, stored=H[:1], removed=[])
    assert changes.read((0,)).changes == (Change(0, 1, A, ONE, H[0], b""),)
