from __future__ import annotations

import msgspec
import pytest
import redis

from tests.support.redis_server import block_hash
from tiered.cluster.connection import command
from tiered.cluster.directory import Directory, whereabouts_of
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.types import NOWHERE, Epoch, NodeId, Owner, TenantId, Whereabouts

A, B = NodeId("node-a"), NodeId("1234")
H = [block_hash(i) for i in range(600)]


@pytest.fixture
def directory(redis_client: redis.Redis, redis_keys: Keys) -> Directory:
    return Directory(redis_client, redis_keys)


def owners(directory: Directory, index: int = 0) -> tuple[Owner, ...]:
    return directory.lookup([H[index]])[0].owners


def test_every_owner_of_a_block_is_found_and_nothing_else(directory: Directory) -> None:
    directory.announce(A, Epoch(1), stored=H[:2], removed=[])
    directory.announce(B, Epoch(7), stored=H[1:3], removed=[])
    assert directory.lookup(H[:4]) == [
        Whereabouts(False, 0, (Owner(A, Epoch(1)),)),
        Whereabouts(False, 0, (Owner(A, Epoch(1)), Owner(B, Epoch(7)))),
        Whereabouts(False, 0, (Owner(B, Epoch(7)),)),
        NOWHERE,
    ]
    assert directory.lookup([]) == []


def test_announcing_more_than_one_call_holds_is_counted_in_full(directory: Directory) -> None:
    directory.announce(A, Epoch(1), stored=H, removed=[])
    assert directory.count(A, Epoch(1)) == 600
    directory.announce(A, Epoch(1), stored=[], removed=H[:500])
    assert directory.count(A, Epoch(1)) == 100
    assert [bool(found.owners) for found in directory.lookup(H)] == [False] * 500 + [True] * 100


def test_announcing_twice_changes_nothing(directory: Directory) -> None:
    for _ in range(2):
        directory.announce(A, Epoch(1), stored=H[:1], removed=[])
    assert owners(directory) == (Owner(A, Epoch(1)),)
    assert directory.count(A, Epoch(1)) == 1


def test_a_late_removal_leaves_a_newer_stamp(directory: Directory) -> None:
    directory.announce(A, Epoch(1), stored=H[:1], removed=[])
    directory.announce(A, Epoch(2), stored=H[:1], removed=[])
    directory.announce(A, Epoch(1), stored=[], removed=H[:1])
    assert owners(directory) == (Owner(A, Epoch(2)),)


def test_a_late_store_never_replaces_a_newer_stamp(directory: Directory) -> None:
    directory.announce(A, Epoch(2), stored=H[:1], removed=[])
    directory.announce(A, Epoch(1), stored=H[:1], removed=[])
    assert owners(directory) == (Owner(A, Epoch(2)),)
    assert directory.count(A, Epoch(1)) == 0


def test_the_last_owner_leaves_no_record_behind(
    directory: Directory, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    directory.announce(A, Epoch(1), stored=H[:1], removed=[])
    directory.announce(A, Epoch(1), stored=[], removed=H[:1])
    assert command(redis_client, "EXISTS", redis_keys.meta(H[0]), redis_keys.node_blocks(A, Epoch(1))) == 0


def test_a_sweep_removes_one_dead_life_and_no_other(directory: Directory) -> None:
    directory.announce(A, Epoch(1), stored=H[:10], removed=[])
    directory.announce(A, Epoch(2), stored=H[:4], removed=[])
    directory.announce(B, Epoch(1), stored=H[:10], removed=[])
    assert directory.sweep(A, Epoch(1), batch=3) == 6
    assert directory.count(A, Epoch(1)) == 0
    assert owners(directory, 0) == (Owner(A, Epoch(2)), Owner(B, Epoch(1)))
    assert owners(directory, 9) == (Owner(B, Epoch(1)),)
    assert directory.count(A, Epoch(2)) == 4
    assert directory.sweep(A, Epoch(1)) == 0


def test_owners_and_stored_values_of_a_block_do_not_disturb_each_other(
    directory: Directory, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    ledger = RedisLedger(redis_client, redis_keys)
    tenant = TenantId("red")
    directory.announce(A, Epoch(1), stored=H[:1], removed=[])
    ledger.reserve([ReserveRequest(H[0], tenant, 5, 0)], ttl_s=30)
    assert directory.lookup(H[:1]) == [Whereabouts(False, 0, (Owner(A, Epoch(1)),))]
    command(redis_client, "SET", redis_keys.block(H[0]), b"12345")
    assert ledger.commit([(H[0], tenant, 5)]) == [True]
    assert directory.lookup(H[:1]) == [Whereabouts(True, 5, (Owner(A, Epoch(1)),))]
    directory.announce(A, Epoch(1), stored=[], removed=H[:1])
    assert directory.lookup(H[:1]) == [Whereabouts(True, 5, ())]
    directory.announce(A, Epoch(1), stored=H[:1], removed=[])
    ledger.remove(H[:1])
    assert directory.lookup(H[:1]) == [Whereabouts(False, 0, (Owner(A, Epoch(1)),))]


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"junk", msgspec.msgpack.encode([2, 5])])
def test_a_record_that_does_not_decode_says_nothing(packed: bytes) -> None:
    assert whereabouts_of(packed) == NOWHERE
