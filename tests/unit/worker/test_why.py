"""The ring of what happened to blocks: order, bounds, and what is found by block and by time."""

from __future__ import annotations

import random
import threading

import pytest

from tests.unit.core.builders import RED, World, chain
from tiered.core.why import Entry, Evicted, Run, Terms, WhyLog
from tiered.errors import ProtocolError
from tiered.types import BlockHash, Happening
from tiered.wire.messages import EXPLAINED_BLOCKS_MAX, EXPLAINED_EVENTS_MAX, Explain, Explained, Recent
from worker.explain import explain
from worker.why import NOTED_MAX, WhyRing

PLENTY = 1 << 30
TERMS = Terms("red", "lru", "room", "blue", 10, 0, 1.0, 0, -1, 0, 1.0)


class Wall:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def ring(*, events_max: int = 1_000, bytes_max: int = PLENTY, wall: Wall | None = None) -> WhyRing:
    return WhyRing(events_max=events_max, bytes_max=bytes_max, wall=wall or Wall())


def block(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32, "big"))


def event(number: int, what: str = "stored", tenant: str = "red") -> Happening:
    return Happening(what, block(number), tenant)


def words(told: Explained) -> list[str]:
    return [each.happening.what for each in told.events]


def of(kept: WhyRing, *numbers: int) -> Explained:
    return explain(None, kept, Explain(b"".join(block(number) for number in numbers)))


def test_a_blocks_events_come_oldest_first_with_growing_numbers_and_the_turns_time() -> None:
    wall = Wall()
    kept = ring(wall=wall)
    kept.turn([event(1), event(2)])
    wall.now += 5
    kept.turn([event(1, "evicted")])
    told = of(kept, 1)
    assert words(told) == ["stored", "evicted"]
    assert [each.at for each in told.events] == [1_000.0, 1_005.0]
    assert told.events[0].seq + 2 == told.events[1].seq == told.last_seq
    assert of(kept, 3).events == ()


def test_a_run_is_found_by_each_block_with_its_place_and_an_eviction_is_put_into_words() -> None:
    kept = ring()
    hashes = tuple(block(number) for number in range(3))
    kept.turn([Run(Happening("stored", hashes[0], "red", "hot", 3, {"depth": 0}), hashes)])
    kept.turn([Evicted(hashes[2], TERMS, 0, 2, 1, 7, 30, "begun")])
    stored, evicted = (told.happening for told in of(kept, 2).events)
    assert (stored.block_hash, stored.n_blocks, stored.detail) == (hashes[2], 3, {"depth": 0, "place": 2})
    assert (evicted.tenant, evicted.detail["for_tenant"], evicted.detail["used"]) == ("red", "blue", 30)
    assert words(of(kept, 1)) == ["stored"]


def test_what_movers_say_stands_between_its_cause_and_its_effect() -> None:
    """Their threads are ahead of the loop: a copy may be in Redis before the core has said that it was made."""
    wall = Wall()
    kept = ring(wall=wall)
    kept.note("stored", block(1), "red", tier="redis")
    kept.note("corrupt", block(2), "red", tier="redis")
    wall.now += 1
    kept.turn([event(1, "demoted"), event(2, "missed")])
    assert words(of(kept, 1)) == ["demoted", "stored"]
    assert words(of(kept, 2)) == ["corrupt", "missed"]
    assert [told.at for told in of(kept, 1, 2).events] == [1_000.0, 1_001.0, 1_001.0, 1_001.0]


def test_a_clock_that_is_set_back_turns_no_order_around() -> None:
    wall = Wall()
    kept = ring(wall=wall)
    kept.turn([event(1)])
    wall.now -= 100
    kept.turn([event(1, "evicted")])
    assert [told.at for told in of(kept, 1).events] == [1_000.0, 1_000.0]


def test_numbers_grow_over_a_restart() -> None:
    wall = Wall()
    first = ring(wall=wall)
    first.turn([event(number) for number in range(500)])
    wall.now += 1
    assert ring(wall=wall).last_seq > first.last_seq


def test_the_ring_is_bounded_by_events_and_forgets_the_oldest_whole() -> None:
    kept = ring(events_max=10)
    hashes = tuple(block(100 + number) for number in range(6))
    kept.turn([Run(Happening("stored", hashes[0], "red", "hot", 6), hashes)])
    kept.turn([event(number) for number in range(4)])
    assert (len(kept), kept.lost) == (10, 0)
    kept.turn([event(5)])
    assert (len(kept), kept.lost) == (5, 6)
    assert of(kept, *range(100, 106)).events == ()
    assert len(of(kept, *range(6)).events) == 5


def test_the_ring_is_bounded_by_bytes_and_one_event_too_large_for_it_leaves_it_empty() -> None:
    kept = ring(bytes_max=20_000)
    for number in range(200):
        kept.turn([Happening("evicted", block(number), "red", "hot", 1, {"why": "x" * 100})])
    assert kept.n_bytes <= 20_000
    assert 10 < len(kept) < 40
    hashes = tuple(block(number) for number in range(1_000))
    kept.turn([Run(Happening("stored", hashes[0], "red", "hot", 1_000), hashes)])
    assert (len(kept), kept.n_bytes) == (0, 0)


def test_the_index_always_agrees_with_the_ring() -> None:
    random_, kept = random.Random(7), ring(events_max=60)
    everything: list[tuple[int, list[BlockHash]]] = []
    for _ in range(400):
        first, n = random_.randrange(40), random_.choice((1, 1, 1, 5))
        hashes = [block(first + i) for i in range(n)]
        entry: Entry = event(first)
        if n > 1:
            entry = Run(Happening("stored", hashes[0], "red", "hot", n), tuple(hashes))
        kept.turn([entry])
        everything.append((kept.last_seq, hashes))
        while sum(len(h) for _, h in everything) > 60:
            everything.pop(0)
        for number in range(45):
            want = [seq for seq, h in everything if block(number) in h]
            assert [told.seq for told in kept.explain([block(number)], n_max=1_000)] == want


def test_one_block_with_very_many_events_is_answered_with_the_newest() -> None:
    kept = ring(events_max=5_000)
    kept.turn([event(1, f"e{number}") for number in range(5_000)])
    told = of(kept, 1)
    assert len(told.events) == EXPLAINED_EVENTS_MAX
    assert told.events[-1].happening.what == "e4999"


def recent(kept: WhyRing, after_seq: int = 0, n_max: int = 100, tenant: str = "", what: str = "") -> Explained:
    return explain(None, kept, Recent(after_seq, n_max, tenant, (what,) if what else ()))


def test_the_newest_come_by_default_and_a_follower_misses_and_repeats_none() -> None:
    kept = ring()
    kept.turn([event(number, f"e{number}") for number in range(30)])
    told = recent(kept, n_max=10)
    assert words(told) == [f"e{number}" for number in range(20, 30)]
    kept.turn([event(number, f"e{number}") for number in range(30, 55)])
    seen, after = [], told.last_seq
    while (told := recent(kept, after, n_max=10)).events:
        seen += words(told)
        after = told.last_seq
    assert seen == [f"e{number}" for number in range(30, 55)]


def test_a_filter_of_tenant_and_kind_holds_and_the_follower_still_moves_on() -> None:
    kept = ring()
    kept.turn([event(1), event(2, "evicted"), event(3, tenant="blue"), event(4, "evicted", "blue")])
    assert [told.happening.block_hash for told in recent(kept, tenant="blue").events] == [block(3), block(4)]
    assert [told.happening.block_hash for told in recent(kept, what="evicted").events] == [block(2), block(4)]
    nothing = recent(kept, after_seq=1, tenant="green")
    assert (nothing.events, nothing.last_seq) == ((), kept.last_seq)


def test_who_follows_from_far_behind_is_answered_with_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ring(events_max=50_000)
    kept.turn([event(number) for number in range(50_000)])
    looks = 0

    def tenant_of(entry: Entry) -> str:
        nonlocal looks
        looks += 1
        return "red"

    monkeypatch.setattr("worker.why.tenant_of", tenant_of)
    oldest = kept.last_seq - 50_000
    for after in (oldest - 7, oldest + 40_000, kept.last_seq - 10):
        looks, first = 0, max(after, oldest) - oldest
        told = recent(kept, after, n_max=10, tenant="red")
        assert [each.happening.block_hash for each in told.events] == [block(first + at) for at in range(10)]
        assert told.last_seq == told.events[-1].seq
        assert looks <= 11
    assert recent(kept, kept.last_seq + 5, tenant="red") == Explained((), kept.last_seq, 0)


def test_who_looks_for_a_rare_kind_looks_no_further_than_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ring(events_max=1_000)
    kept.turn([event(0, "corrupt"), *(event(number) for number in range(1, 990)), event(1, "evicted", "blue")])
    kept.turn([event(number) for number in range(20)])  # the corrupt one is forgotten
    looks = 0

    def what_of(entry: Entry) -> str:
        nonlocal looks
        looks += 1
        assert isinstance(entry, Happening)
        return entry.what

    monkeypatch.setattr("worker.why.what_of", what_of)
    assert recent(kept, what="corrupt").events == recent(kept, kept.last_seq - 900, what="corrupt").events == ()
    assert looks == 0
    assert words(recent(kept, what="evicted")) == ["evicted"]
    assert recent(kept, what="evicted", tenant="red").events == ()
    assert looks == 2 * 21


@pytest.mark.parametrize(
    "request_",
    [Recent(0, 0), Recent(0, EXPLAINED_EVENTS_MAX + 1), Recent(-1, 5), Explain(b"x"), Explain(bytes(32 * 257))],
)
def test_a_request_that_makes_no_sense_is_refused(request_: Explain | Recent) -> None:
    assert EXPLAINED_BLOCKS_MAX == 256
    with pytest.raises(ProtocolError):
        explain(None, ring(), request_)


def test_threads_note_at_once_and_a_flood_between_turns_is_bounded() -> None:
    kept = ring(events_max=100_000)
    threads = [
        threading.Thread(target=lambda: [kept.note("stored", block(i), "red") for i in range(500)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    kept.turn([])
    assert len(kept) == 4_000
    for number in range(NOTED_MAX + 10):
        kept.note("stored", block(number), "red")
    kept.turn([])
    assert len(kept) == 4_000 + NOTED_MAX


def test_what_is_here_is_told_with_its_state_and_its_use() -> None:
    world = World(4)
    world.core.why = WhyLog()
    hashes = chain("a", 2)
    world.save(hashes)
    lease = world.match(hashes[:1])
    filling = world.open(chain("b", 1))
    world.allocate(filling)
    told = explain(world.core, None, Explain(b"".join([*hashes, *chain("b", 1), *chain("never", 1)])))
    assert [(b.state, b.tenants, b.hits, b.pins, b.depth, b.idle) for b in told.blocks] == [
        ("ready", (RED,), 1, 1, 0, 0),
        ("ready", (RED,), 0, 0, 1, 1),
        ("filling", (RED,), 0, 0, 0, 0),
    ]
    assert told.events == ()
    world.release(lease)
    world.release(filling)


def test_a_node_without_pool_and_ring_has_nothing_to_tell() -> None:
    assert explain(None, None, Explain(block(1))) == Explained((), 0, 0)
    assert explain(None, None, Recent(0, 5)) == Explained((), 0, 0)
