"""share.lua and lend.lua: what the books take, from whom, and what they refuse."""

from __future__ import annotations

import pytest
import redis

from tests.unit.coordinator.builders import node_info
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.cluster.leadership import Leadership
from tiered.cluster.membership import Membership
from tiered.cluster.shares import Books, Held, LendAnswer, Lent, Record, Report, Shares
from tiered.errors import LeaseExpired, StaleEpoch
from tiered.types import Epoch, NodeId

N1, N2 = NodeId("n1"), NodeId("token")
"""The second is named like a field of the books: it must not be taken for one."""


class World:
    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client, self.keys = client, keys
        self.membership = Membership(client, keys)
        self.shares = Shares(client, keys)
        self.token = Leadership(client, keys).ask("leader", "", lease_s=60).token
        self.lives: dict[NodeId, Epoch] = {}

    def join(self, node: NodeId) -> Epoch:
        self.lives[node] = self.membership.join(node_info(node), lease_ttl_s=60)
        return self.lives[node]

    def lend(self, changed: dict[NodeId, Record], *, gone: tuple[NodeId, ...] = ()) -> LendAnswer:
        read = self.shares.books().revision
        return self.shares.lend(
            token=self.token,
            read=read,
            revision=read + 1,
            settled=True,
            lives=list(self.lives.items()),
            changed=changed,
            gone=gone,
        )


@pytest.fixture
def world(redis_client: redis.Redis, redis_keys: Keys) -> World:
    return World(redis_client, redis_keys)


def record(epoch: int, revision: int = 1, n_bytes: int = 50) -> Record:
    return Record(epoch, revision, {"red": Lent(n_bytes, 5, n_bytes), "free": Lent(None, 7)})


def test_a_life_reports_and_hears_what_it_was_lent(world: World) -> None:
    epoch = world.join(N1)
    report = Report(epoch, 0, 3, {"red": Held(10, 5, 1 << 50)})
    assert world.shares.exchange(N1, report) is None
    assert world.lend({N1: record(epoch)}) is LendAnswer.DONE
    assert world.shares.exchange(N1, report) == record(epoch)
    books = world.shares.books()
    assert books == Books(1, world.token, True, {N1: record(epoch)}, {N1: report})


def test_names_like_the_fields_of_the_books_are_nodes_all_the_same(world: World) -> None:
    epoch = world.join(N2)
    world.shares.exchange(N2, Report(epoch, 0, 0))
    assert world.lend({N2: record(epoch)}) is LendAnswer.DONE
    books = world.shares.books()
    assert (books.token, set(books.lent), set(books.reports)) == (world.token, {N2}, {N2})


def test_an_older_life_neither_reports_nor_hears(world: World) -> None:
    old = world.join(N1)
    new = world.join(N1)
    with pytest.raises(StaleEpoch) as stale:
        world.shares.exchange(N1, Report(old, 0, 0))
    assert (stale.value.seen, stale.value.current) == (old, new)
    world.membership.leave(N1, new)
    with pytest.raises(LeaseExpired):
        world.shares.exchange(N1, Report(new, 0, 0))
    assert world.shares.books().reports == {}


def test_nothing_is_written_once_a_life_has_begun_or_ended_since(world: World) -> None:
    epoch = world.join(N1)
    before = dict(world.lives)
    for change in (lambda: world.join(N1), lambda: world.join(N2)):
        change()
        world.lives = dict(before)
        assert world.lend({N1: record(epoch)}) is LendAnswer.CHANGED
    assert world.shares.books() == Books()


def test_a_write_that_comes_twice_is_refused_the_second_time(world: World) -> None:
    epoch = world.join(N1)
    lives = list(world.lives.items())
    late = {"token": world.token, "read": 0, "revision": 1, "settled": True, "lives": lives}
    assert world.shares.lend(**late, changed={N1: record(epoch)}) is LendAnswer.DONE  # type: ignore[arg-type]
    assert world.lend({N1: record(epoch, 2, 60)}) is LendAnswer.DONE
    assert world.shares.lend(**late, changed={N1: record(epoch)}) is LendAnswer.CHANGED  # type: ignore[arg-type]
    assert world.shares.books().lent == {N1: record(epoch, 2, 60)}


def test_a_node_that_is_gone_leaves_no_trace_and_one_that_lives_keeps_its_report(world: World) -> None:
    first, second = world.join(N1), world.join(N2)
    for node, epoch in world.lives.items():
        world.shares.exchange(node, Report(epoch, 0, 0))
    world.lend({N1: record(first), N2: record(second)})
    world.membership.leave(N1, first)
    del world.lives[N1]
    assert world.lend({}, gone=(N1, N2)) is LendAnswer.DONE
    books = world.shares.books()
    assert (books.lent, set(books.reports)) == ({}, {N2})


def test_an_entry_that_cannot_be_read_is_named_and_the_others_are_read(world: World) -> None:
    epoch = world.join(N1)
    world.lend({N1: record(epoch)})
    command(world.client, "HSET", world.keys.shares(), "n9", b"\xc1")
    books = world.shares.books()
    assert set(books.unreadable) == {"n9"}
    assert set(books.lent) == {N1}


def test_the_books_of_two_hundred_nodes_are_written_at_once(world: World) -> None:
    nodes = [NodeId(f"n{i}") for i in range(200)]
    changed = {node: record(world.join(node)) for node in nodes}
    assert world.lend(changed) is LendAnswer.DONE
    assert world.shares.books().lent == changed
