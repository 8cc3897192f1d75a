"""The list that the books' scripts keep for who asks why: each kind of entry, and its bounds."""

from __future__ import annotations

import itertools

import pytest
import redis

from tests.lua.test_ledger_scripts import BLUE, GREEN, RED, SIZE, Books
from tests.support.redis_server import block_hash, eventually
from tiered.cluster.clearing import clear_prefix
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import ReserveAnswer, ReserveRequest
from tiered.cluster.why import TOLD_MAX, BooksWhy
from tiered.types import Happening, TenantId


class Why(Books):
    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        self.why = BooksWhy(client, keys)

    def told(self) -> list[Happening]:
        return [told.happening for told in self.why.newest(1_000)[0]]

    def words(self) -> list[tuple[str, str, object, object]]:
        return [(h.what, h.tenant, h.detail["why"], h.detail["for_tenant"]) for h in self.told()]


@pytest.fixture
def books(redis_client: redis.Redis, redis_keys: Keys) -> Why:
    return Why(redis_client, redis_keys)


def test_what_is_stored_and_what_is_there_already_makes_no_entry(books: Why) -> None:
    books.store("a")
    books.store("a", BLUE)
    assert command(books.client, "EXISTS", books.keys.why()) == 0


def test_a_tenant_at_its_limit_gives_for_itself_with_the_numbers_before(books: Why) -> None:
    books.limit(RED, 2 * SIZE, weight=2.0)
    books.store("a")
    books.store("b")
    assert books.store("c") is ReserveAnswer.RESERVED_AFTER_EVICTING_OWN
    [happening] = books.told()
    assert (happening.what, happening.tier) == ("evicted", "redis")
    assert [books.stored(name) == [happening.block_hash != block_hash(name)] for name in "ab"] == [True, True]
    idle_s = happening.detail.pop("idle_s")
    assert isinstance(idle_s, float)
    assert 0 <= idle_s < 10
    assert happening.detail == {
        "why": "own limit",
        "for_tenant": "red",
        "bytes": SIZE,
        "used": 2 * SIZE,
        "limit": 2 * SIZE,
        "reserved": 0,
        "weight": 2,
        "tier_used": 2 * SIZE,
        "capacity": -1,
    }


def test_a_full_tier_tells_whose_block_left_for_whom_and_how_both_stood(books: Why) -> None:
    books.tenants.set_capacity(3 * SIZE)
    books.limit(BLUE, 2 * SIZE, redis_reserved_bytes=SIZE)
    for name in "abc":
        books.store(name)
    assert books.store("d", BLUE) is ReserveAnswer.RESERVED_AFTER_RECLAIMING
    [happening] = books.told()
    detail = happening.detail
    assert (happening.tenant, detail["for_tenant"], detail["why"]) == ("red", "blue", "room")
    assert (detail["used"], detail["limit"], detail["tier_used"], detail["capacity"]) == (
        3 * SIZE,
        -1,
        3 * SIZE,
        3 * SIZE,
    )
    assert (detail["for_used"], detail["for_limit"], detail["for_reserved"]) == (0, 2 * SIZE, SIZE)


def test_a_refusal_says_which_bound_it_met(books: Why) -> None:
    books.limit(RED, SIZE, over_quota="refuse")
    books.tenants.set_capacity(2 * SIZE)
    books.store("a")
    assert books.store("b") is ReserveAnswer.REFUSED_QUOTA
    assert books.reserve("c", BLUE, size=3 * SIZE) is ReserveAnswer.REFUSED_FULL
    assert books.words() == [("refused", "red", "quota", ""), ("refused", "blue", "full", "")]


def test_who_parts_from_a_shared_block_and_who_gives_for_a_larger_part_are_told(books: Why) -> None:
    books.store("shared", RED)
    books.store("shared", BLUE)
    books.limit(BLUE, SIZE + SIZE // 2)
    books.store("own", BLUE)
    books.ledger.clear(RED)
    assert books.words() == [
        ("evicted", "blue", "larger part", ""),
        ("parted", "red", "asked for", ""),
    ]


def test_the_last_ones_out_are_all_told(books: Why) -> None:
    books.store("shared", RED)
    books.store("shared", BLUE)
    books.limit(BLUE, SIZE // 2)
    books.ledger.clear(RED)
    assert sorted(books.words()) == [
        ("cleared", "blue", "larger part", ""),
        ("cleared", "red", "asked for", ""),
    ]


def test_idleness_beyond_the_ttl_is_told_as_such(books: Why) -> None:
    books.store("a")
    eventually(lambda: books.ledger.expire(RED, idle_s=0.02) == 1)
    [happening] = books.told()
    assert (happening.what, happening.detail["why"]) == ("expired", "not used for too long")
    assert float(happening.detail["idle_s"]) >= 0.02


def test_values_found_bad_lost_stray_or_cleared_are_told_each_in_its_words(books: Why) -> None:
    books.store("corrupt")
    books.ledger.remove([block_hash("corrupt")])
    books.store("lost")
    command(books.client, "DEL", books.keys.block(block_hash("lost")))
    books.ledger.audit([block_hash("lost")], settle=False)
    books.ledger.audit([block_hash("lost")], settle=True)
    books.write("stray")
    books.ledger.audit([block_hash("stray")], settle=True)
    books.store("prefix")
    clear_prefix(books.client, books.keys, block_hash("prefix"))
    assert books.words() == [
        ("removed", "red", "found corrupt or lost", ""),
        ("lost", "red", "the server lost it", ""),
        ("stray", "", "no record names it", ""),
        ("removed", "red", "its prefix was cleared", ""),
    ]


def test_a_value_that_the_server_lost_is_told_by_the_writer_that_finds_out(books: Why) -> None:
    books.store("a")
    command(books.client, "DEL", books.keys.block(block_hash("a")))
    assert books.store("a") is ReserveAnswer.RESERVED
    assert books.words() == [("lost", "red", "the server lost it", "")]


def test_the_entries_of_one_block_are_found_oldest_first(books: Why) -> None:
    books.limit(RED, SIZE)
    for name in "abab":
        books.store(name)
    found = books.why.of_block(block_hash("a"))
    assert [(told.happening.what, told.happening.block_hash) for told in found] == [("evicted", block_hash("a"))] * 2
    assert found[0].at <= found[1].at
    assert books.why.of_block(block_hash("never")) == []


def test_the_list_is_bounded_and_keeps_the_newest(books: Why) -> None:
    books.limit(RED, 0)
    names = iter(range(TOLD_MAX + 300))
    while batch := list(itertools.islice(names, 1_000)):
        requests = [ReserveRequest(block_hash(name), RED, SIZE, 0) for name in batch]
        assert set(books.ledger.reserve(requests, ttl_s=30.0)) == {ReserveAnswer.REFUSED_QUOTA}
    assert command(books.client, "LLEN", books.keys.why()) == TOLD_MAX
    assert books.told()[-1].block_hash == block_hash(TOLD_MAX + 299)
    assert books.why.of_block(block_hash(299)) == []
    assert len(books.why.of_block(block_hash(300))) == 1
    assert command(books.client, "MEMORY", "USAGE", books.keys.why()) < 3 << 20


def test_a_block_of_very_many_tenants_is_told_without_breaking_the_script(books: Why) -> None:
    names = [f"s{i}" for i in range(40)]
    for name in names:
        books.store(name, size=1_000)
    for number in range(300):
        requests = [ReserveRequest(block_hash(name), TenantId(f"t{number}"), 1_000, 0) for name in names]
        assert set(books.ledger.reserve(requests, ttl_s=30.0)) == {ReserveAnswer.ALREADY_THERE}
    assert books.ledger.remove([block_hash(name) for name in names]) == 40
    assert command(books.client, "LLEN", books.keys.why()) == TOLD_MAX


def test_a_follower_sees_each_entry_once(books: Why) -> None:
    books.limit(RED, 0)
    _, reached = books.why.newest(10)
    seen = []
    for name in range(50):
        books.reserve(name, GREEN if name % 2 else RED, size=0 if name % 2 else SIZE)
        told, reached = books.why.after(reached)
        seen += [h.happening.block_hash for h in told]
    assert seen == [block_hash(name) for name in range(0, 50, 2)]
    assert books.why.after(reached)[0] == []


def test_a_follower_of_another_number_of_partitions_begins_anew(redis_client: redis.Redis, redis_keys: Keys) -> None:
    books = Why(redis_client, Keys(redis_keys.namespace, partitions=4))
    books.limit(RED, 0)
    requests = [ReserveRequest(block_hash(name), RED, SIZE, 0) for name in range(20)]
    books.ledger.reserve(requests, ttl_s=30.0)
    told, reached = books.why.after(((5, 1),))
    assert {entry.happening.block_hash for entry in told} == {block_hash(name) for name in range(20)}
    assert len(reached) == 4
    assert [told.at for told in told] == sorted(told.at for told in told)


def test_an_entry_that_cannot_be_read_says_nothing(books: Why) -> None:
    books.limit(RED, 0)
    books.reserve("a")
    command(books.client, "LPUSH", books.keys.why(), b"\xc1", b"\x91\x01")
    assert [h.block_hash for h in books.told()] == [block_hash("a")]
