"""Each script of the directory alone, over the real server: numbers, digests, equal records, and size."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import redis

from tests.support.redis_server import block_hash
from tiered.cluster import scripts
from tiered.cluster.announcement import Announcement, Heard
from tiered.cluster.announcing import CHECK_S, RECHECK_S, Announcing, Compare, Say
from tiered.cluster.connection import command
from tiered.cluster.digest import Digest, digest_of
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys, partition_of
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.cluster.membership import Membership
from tiered.types import NO_HASH, BlockHash, Epoch, NodeId, NodeInfo, Owner, TenantId

A, B = NodeId("node-a"), NodeId("b:1")
ONE, TWO = Epoch(1), Epoch(2)
RED = TenantId("red")
H = [block_hash(i) for i in range(700)]


@pytest.fixture
def directory(redis_client: redis.Redis, redis_keys: Keys) -> Directory:
    return Directory(redis_client, redis_keys)


def say(
    directory: Directory,
    number: int,
    stored: Sequence[BlockHash] = (),
    removed: Sequence[BlockHash] = (),
    *,
    epoch: Epoch = ONE,
    whole: Digest | None = None,
) -> Heard | None:
    [heard] = directory.hear(A, epoch, [Announcement(0, number, stored, removed, whole)])
    return heard


def held(directory: Directory, node: NodeId = A, epoch: Epoch = ONE) -> set[BlockHash]:
    return {h for p in range(directory.partitions) for h in directory.members(node, epoch, p)}


def keys_of(client: redis.Redis, keys: Keys) -> set[bytes]:
    return set(client.scan_iter(match=f"{{{keys.namespace}:*"))


def test_what_was_said_earlier_and_comes_later_changes_nothing(directory: Directory) -> None:
    assert say(directory, 3, H[:4]) == Heard(True, 4)
    for number in (1, 2, 3):
        assert say(directory, number, H[4:6], H[:2]) == Heard(False, 3)
    assert held(directory) == set(H[:4])
    assert say(directory, 4, H[4:6], H[:2]) == Heard(True, 4)
    assert held(directory) == set(H[2:6])


def test_numbers_are_of_one_life_and_one_partition(redis_client: redis.Redis, redis_keys: Keys) -> None:
    directory = Directory(redis_client, Keys(redis_keys.namespace, partitions=2))
    even, odd = ([h for h in H[:40] if partition_of(h, 2) == p] for p in (0, 1))
    assert directory.hear(A, ONE, [Announcement(0, 9, even, ())]) == [Heard(True, len(even))]
    assert directory.hear(A, ONE, [Announcement(1, 1, odd, ())]) == [Heard(True, len(odd))]
    assert directory.hear(A, TWO, [Announcement(0, 1, even, ())]) == [Heard(True, len(even))]
    assert directory.hear(B, ONE, [Announcement(0, 1, even, ())]) == [Heard(True, len(even))]


def test_a_digest_is_that_of_the_set_whatever_is_said(directory: Directory) -> None:
    rng = random.Random(5)
    here: set[BlockHash] = set()
    for number in range(1, 60):
        stored = rng.sample(H[:60], rng.randrange(12))
        removed = [h for h in rng.sample(H[:60], rng.randrange(12)) if h not in stored]
        say(directory, number, stored, removed)
        here = (here | set(stored)) - set(removed)
        assert held(directory) == here
        assert directory.digests(A, ONE) == [digest_of(here)]


def test_a_hash_said_twice_in_one_call_is_counted_as_it_ends(directory: Directory) -> None:
    say(directory, 1, H[:2], H[1:2])
    assert directory.digests(A, ONE) == [digest_of(H[:2])], "it was not there to be removed"
    directory.announce(A, ONE, stored=H[:3], removed=H[:1])
    assert directory.digests(A, ONE) == [digest_of(H[1:3])]


def test_a_sweep_keeps_the_digest_of_what_is_left(
    directory: Directory, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    directory.announce(A, ONE, stored=H, removed=[])
    said = scripts.sweep(redis_client, redis_keys, A, ONE, batch=600)
    assert said == (600, 600)
    left = held(directory)
    assert len(left) == 100
    assert directory.digests(A, ONE) == [digest_of(left)]
    directory.sweep(A, ONE)
    assert directory.digests(A, ONE) == [Digest()]


def test_a_lost_digest_agrees_with_nothing_until_it_is_restated(
    directory: Directory, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    say(directory, 1, H[:5])
    command(redis_client, "DEL", redis_keys.node_digests(A, ONE))
    assert directory.digests(A, ONE) != [digest_of(H[:5])]
    say(directory, 2, H[5:6])
    assert directory.digests(A, ONE) != [digest_of(H[:6])]
    say(directory, 3, whole=digest_of(H[:7]))
    assert directory.digests(A, ONE) != [digest_of(H[:6])], "another count than the set's is not believed"
    say(directory, 4, whole=digest_of(H[:6]))
    assert directory.digests(A, ONE) == [digest_of(H[:6])]


def test_a_lost_set_agrees_with_nothing(directory: Directory, redis_client: redis.Redis, redis_keys: Keys) -> None:
    say(directory, 1, H[:5])
    command(redis_client, "DEL", redis_keys.node_blocks(A, ONE))
    assert directory.digests(A, ONE) not in ([Digest()], [digest_of(H[:5])])


def test_records_that_are_equal_and_those_that_are_not_change_each_as_it_should(
    directory: Directory, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    """In one call: none, another node's, a stored value's, an older life's, a newer life's, and one that is junk."""
    ledger = RedisLedger(redis_client, redis_keys)
    ledger.reserve([ReserveRequest(h, RED, 5, d, H[d - 1] if d else NO_HASH) for d, h in enumerate(H[:3])], ttl_s=30)
    for h in H[:3]:
        command(redis_client, "SET", redis_keys.block(h), b"12345")
    ledger.commit([(h, RED, 5) for h in H[:3]])
    directory.announce(B, Epoch(7), stored=H[2:6], removed=[])
    directory.announce(A, ONE, stored=H[6:8], removed=[])
    directory.announce(A, Epoch(3), stored=H[8:10], removed=[])
    command(redis_client, "SET", redis_keys.meta(H[10]), b"\xc1junk")
    assert say(directory, 1, H[:12], epoch=TWO) == Heard(True, 10)
    mine, theirs = Owner(A, TWO), Owner(B, Epoch(7))
    found = directory.lookup(H[:12])
    assert [where.in_redis for where in found] == [True] * 3 + [False] * 9
    expected = [(mine,)] * 2 + [(theirs, mine)] * 4 + [(mine,)] * 2 + [(Owner(A, Epoch(3)),)] * 2 + [(mine,)] * 2
    assert [where.owners for where in found] == expected
    assert held(directory, A, TWO) == set(H[:8]) | set(H[10:12])
    assert say(directory, 2, (), H[:12], epoch=TWO) == Heard(True, 10)
    assert [where.in_redis for where in directory.lookup(H[:12])] == [True] * 3 + [False] * 9
    assert held(directory, A, TWO) == set()
    assert ledger.commit([(h, RED, 5) for h in H[:3]]) == [True] * 3, "what is stored was not touched"


def test_a_stamp_that_was_lost_although_the_block_is_listed_is_made_anew(
    directory: Directory, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    say(directory, 1, H[:5])
    command(redis_client, "DEL", redis_keys.meta(H[0]))
    at = command(redis_client, "XLEN", redis_keys.changes())
    assert say(directory, 2, H[:5]) == Heard(True, 1)
    assert directory.lookup(H[:1])[0].owners == (Owner(A, ONE),)
    assert directory.digests(A, ONE) == [digest_of(H[:5])]
    assert command(redis_client, "XLEN", redis_keys.changes()) == at, "what is listed did not change"


@pytest.mark.parametrize("partitions", [1, 4])
def test_size_returns_to_its_start_when_all_is_removed(
    redis_client: redis.Redis, redis_keys: Keys, partitions: int
) -> None:
    """Streams aside, which are bounded."""
    keys = Keys(redis_keys.namespace, partitions=partitions)
    directory = Directory(redis_client, keys)
    streams = {part.changes() for part in keys.every()}
    directory.announce(A, ONE, stored=H, removed=[])
    directory.announce(B, TWO, stored=H[:50], removed=[])
    assert len(keys_of(redis_client, keys)) > 700
    directory.announce(A, ONE, stored=[], removed=H)
    directory.announce(B, TWO, stored=[], removed=H[:50])
    assert keys_of(redis_client, keys) == streams


@pytest.mark.parametrize("partitions", [1, 4])
def test_size_returns_to_its_start_when_all_have_left_and_were_swept(
    redis_client: redis.Redis, redis_keys: Keys, partitions: int
) -> None:
    keys = Keys(redis_keys.namespace, partitions=partitions)
    directory, membership = Directory(redis_client, keys), Membership(redis_client, keys)
    lives = []
    for node in (A, B, A):
        epoch = membership.join(NodeInfo(node, "h", 1, 2, "/s", 3), lease_ttl_s=60.0)
        lives.append((node, epoch))
        directory.announce(node, epoch, stored=H, removed=[])
    for node, epoch in lives:
        membership.leave(node, epoch)
        directory.sweep(node, epoch)
    streams = {part.changes() for part in keys.every()}
    assert keys_of(redis_client, keys) == streams | {keys.epochs()}


@pytest.mark.parametrize("partitions", [1, 4])
def test_an_announcer_puts_a_directory_right_that_lost_any_of_its_keys(
    redis_client: redis.Redis, redis_keys: Keys, partitions: int
) -> None:
    keys = Keys(redis_keys.namespace, partitions=partitions)
    directory, announcing = Directory(redis_client, keys), Announcing(partitions)
    announcing.begin_life(ONE, H, 0.0)
    now = 0.0

    def settle() -> None:
        while (ask := announcing.next(now)) is not None:
            if isinstance(ask, Say):
                announcing.heard(ask, directory.hear(A, ask.epoch, ask.announcements))
            elif isinstance(ask, Compare):
                announcing.compared(ask, directory.digests(A, ask.epoch), now)
            else:
                announcing.read(ask, directory.members(A, ask.epoch, ask.partition))

    settle()
    part = keys.every()[-1]
    for lost in (
        [part.node_blocks(A, ONE)],
        [part.node_digests(A, ONE)],
        [part.node_blocks(A, ONE), part.node_digests(A, ONE)],
        [key for key in keys_of(redis_client, keys) if key.startswith(part.meta(NO_HASH)[:-2])],
    ):
        command(redis_client, "DEL", *lost)
        directory.announce(A, ONE, stored=[block_hash(f"foreign {now}")], removed=[])
        before = announcing.counters.repairs
        for wait in (CHECK_S, RECHECK_S, CHECK_S):
            now += wait
            settle()
        assert announcing.counters.repairs > before
        assert held(directory) == set(H)
        assert all(where.owners == (Owner(A, ONE),) for where in directory.lookup(H))
