"""What a core notes for the why-log: each kind once, with the numbers of that moment."""

from __future__ import annotations

import pytest

from tests.unit.core.builders import BLOCK_BYTES, BLOCK_TOKENS, BLUE, PEER, RED, REDIS, World, chain, checksum
from tests.unit.core.test_sequences import begin, opened
from tiered.core.adopt import adopt
from tiered.core.allocate import Shortfall
from tiered.core.demote import make_room
from tiered.core.why import NO_LIMIT, RUN_BLOCKS_MAX, UNTAKEN_MAX, WhyLog, happening_of, hashes_of
from tiered.errors import OutOfBlocks
from tiered.journal.rows import ROOT, JournalRow
from tiered.types import NO_HASH, BlockHash, Happening, TenantId

NOBODY = TenantId("")


def told(world: World) -> WhyLog:
    world.core.why = WhyLog()
    return world.core.why


def whole(log: WhyLog) -> list[Happening]:
    return [happening_of(entry) for entry in log.take()]


def only(log: WhyLog, what: str) -> Happening:
    [happening] = [happening for happening in whole(log) if happening.what == what]
    return happening


def test_a_commit_is_told_once_for_its_run_and_found_by_each_of_its_blocks() -> None:
    world = World(8)
    log, hashes = told(world), chain("a", 4)
    world.save(hashes)
    [entry] = log.take()
    assert hashes_of(entry) == tuple(hashes)
    assert happening_of(entry) == Happening("stored", hashes[0], "red", "hot", 4, {"depth": 0})
    assert happening_of(entry, hashes[2]) == Happening("stored", hashes[2], "red", "hot", 4, {"depth": 0, "place": 2})


def test_an_eviction_tells_who_gave_for_whom_by_which_policy_and_with_which_shares() -> None:
    world = World(4, lower_tier=False)
    world.limit(RED, 4, weight=2.0)
    world.limit(BLUE, 3, hot_reserved_blocks=2)
    old = chain("old", 4)
    world.save(old)
    world.release(world.match(old))
    log = told(world)
    world.save(chain("new", 2), tenant=BLUE)
    first, second = (happening for happening in whole(log) if happening.what == "evicted")
    assert (first.block_hash, second.block_hash) == (old[3], old[2])
    assert (first.tenant, first.tier, first.n_blocks) == ("red", "hot", 1)
    assert first.detail == {
        "policy": "lru",
        "why": "room",
        "for_tenant": "blue",
        "rank": 0,
        "depth": 3,
        "hits": 1,
        "idle": 0,
        "copy": "no tier below",
        "used": 4 * BLOCK_BYTES,
        "limit": 4 * BLOCK_BYTES,
        "reserved": 0,
        "weight": 2.0,
        "for_used": 0,
        "for_limit": 3 * BLOCK_BYTES,
        "for_reserved": 2 * BLOCK_BYTES,
        "for_weight": 1.0,
    }
    assert second.detail["used"] == 3 * BLOCK_BYTES


def test_a_tenant_at_its_own_limit_gives_for_itself() -> None:
    world = World(8, lower_tier=False)
    world.limit(RED, 2)
    world.save(chain("a", 2))
    log = told(world)
    world.save(chain("b", 1))
    detail = only(log, "evicted").detail
    assert (detail["why"], detail["for_tenant"]) == ("own limit", "red")
    assert "for_used" not in detail  # it is the giver's own


def test_a_lowered_limit_and_room_ahead_of_need_are_told_apart() -> None:
    world = World(4, lower_tier=False)
    world.save(chain("a", 4))
    log = told(world)
    world.limit(RED, 3)
    assert only(log, "evicted").detail["why"] == "limit lowered"
    make_room(world.core, asking=NOBODY, n_blocks=1)
    detail = only(log, "evicted").detail
    assert (detail["why"], detail["for_tenant"], detail["limit"]) == ("ahead of need", "", 3 * BLOCK_BYTES)


def test_the_rank_counts_what_the_policy_would_rather_have_had() -> None:
    world = World(4, lower_tier=False)
    old, young = chain("old", 1), chain("young", 1)
    world.save(old)
    world.save(young)
    lease = world.match(old)
    world.release(world.match(young))  # old is the policy's first choice, and in use
    log = told(world)
    world.core.policies[RED].on_hit(world.id_of(young[0]))
    make_room(world.core, asking=NOBODY, n_blocks=1)
    detail = only(log, "evicted").detail
    assert (detail["rank"], detail["idle"]) == (1, 0)
    world.release(lease)


@pytest.mark.parametrize(
    ("demote", "lower_tier", "hits", "copy"),
    [
        ("evicted", True, 0, "begun"),
        ("reused", True, 1, "begun"),
        ("reused", True, 0, "not reused"),
        ("never", True, 1, "never"),
        ("evicted", False, 1, "no tier below"),
    ],
)
def test_an_eviction_says_what_becomes_of_a_copy(demote: str, lower_tier: bool, hits: int, copy: str) -> None:
    world = World(2, demote=demote, lower_tier=lower_tier)
    hashes = chain("a", 1)
    world.save(hashes)
    for _ in range(hits):
        world.release(world.match(hashes))
    log = told(world)
    make_room(world.core, asking=NOBODY, n_blocks=1)
    detail = only(log, "evicted").detail
    assert (detail["copy"], detail["hits"]) == (copy, hits)


def test_a_block_that_has_to_leave_at_once_leaves_without_a_copy() -> None:
    world = World(1)
    world.save(chain("a", 1))
    log = told(world)
    world.save(chain("b", 1), force=True)
    assert only(log, "evicted").detail["copy"] == "no time"


def test_a_copy_made_before_is_not_made_again() -> None:
    world = World(2, demote="always")
    log = told(world)
    world.save(chain("a", 1))
    world.copy_all()
    assert [happening.what for happening in whole(log)] == ["stored", "copied"]
    make_room(world.core, asking=NOBODY, n_blocks=1)
    assert only(log, "evicted").detail["copy"] == "made before"


def test_a_copy_that_is_made_is_told_after_the_eviction_and_one_that_is_not_with_the_reason() -> None:
    world = World(4)
    hashes = chain("a", 2)
    world.save(hashes)
    log = told(world)
    make_room(world.core, asking=NOBODY, n_blocks=1)
    world.turn()
    world.copy_all()
    make_room(world.core, asking=NOBODY, n_blocks=1)
    world.turn()
    world.copy(world.seam.copies[0], copied=False)
    assert [(happening.what, happening.block_hash) for happening in whole(log)] == [
        ("evicted", hashes[1]),
        ("demoted", hashes[1]),
        ("evicted", hashes[0]),
        ("uncopied", hashes[0]),
    ]


def test_a_job_that_the_queue_has_no_room_for_is_told_as_a_copy_that_was_not_made() -> None:
    world = World(2)
    world.save(chain("a", 1))
    world.seam.room = 0
    log = told(world)
    make_room(world.core, asking=NOBODY, n_blocks=1)
    world.turn()
    assert only(log, "uncopied").detail == {"why": "queue full", "stays": 0}


def test_a_hit_while_leaving_is_told_as_a_recall() -> None:
    world = World(2)
    hashes = chain("a", 1)
    world.save(hashes)
    make_room(world.core, asking=NOBODY, n_blocks=1)
    world.turn()
    log = told(world)
    world.release(world.match(hashes))
    assert only(log, "recalled").block_hash == hashes[0]
    world.copy_all()


def test_what_a_load_brings_is_told_by_source_and_what_was_promised_in_vain_too() -> None:
    world = World(8)
    log, hashes = told(world), chain("a", 5)
    lease = world.match(hashes, below={0: (PEER,), 1: (PEER,), 2: (REDIS,), 3: (REDIS,), 4: (REDIS,)})
    world.load(lease)
    world.answer(world.seam.fetches[0])
    world.answer(world.seam.fetches[0], good=[hashes[2], hashes[4]])
    seen = [(h.what, h.block_hash, h.n_blocks, h.detail) for h in whole(log)]
    assert seen == [
        ("fetched", hashes[0], 2, {"depth": 0, "source": "peer"}),
        ("fetched", hashes[2], 1, {"depth": 2, "source": "redis"}),
        ("missed", hashes[3], 1, {"why": "promised and absent", "source": "redis", "behind": 1}),
    ]
    world.release(lease)


def test_a_block_that_nobody_promised_is_no_miss_worth_telling() -> None:
    world = World(4)
    log = told(world)
    lease = world.match(chain("a", 2))
    world.load(lease)
    world.release(lease)
    assert log.take() == []


def test_a_refusal_tells_its_reason_and_the_numbers() -> None:
    world = World(4)
    world.limit(RED, 1, over_quota="refuse", hot_reserved_blocks=1)
    log, hashes = told(world), chain("a", 3)
    assert world.save(hashes) == (1, Shortfall.QUOTA)
    happening = only(log, "refused")
    assert (happening.block_hash, happening.n_blocks) == (hashes[1], 2)
    assert happening.detail == {
        "why": "quota",
        "depth": 1,
        "used": BLOCK_BYTES,
        "limit": BLOCK_BYTES,
        "reserved": BLOCK_BYTES,
        "free_blocks": 3,
        "pool_blocks": 4,
    }


def test_a_full_pool_and_a_busy_block_are_refusals_too() -> None:
    world = World(1)
    log, mine = told(world), chain("a", 2)
    first = world.open(mine)
    world.allocate(first)
    second = world.open(mine)
    assert world.allocate(second).shortfall is Shortfall.BUSY
    third = world.open(chain("b", 1), tenant=BLUE)
    assert world.allocate(third).shortfall is Shortfall.FULL
    refused = [(h.tenant, h.block_hash, h.detail["why"]) for h in whole(log) if h.what == "refused"]
    assert ("red", mine[0], "busy") in refused
    assert ("blue", chain("b", 1)[0], "full") in refused
    for lease in (first, second, third):
        world.release(lease)


def test_parting_from_a_shared_block_tells_who_is_left() -> None:
    world = World(4, lower_tier=False)
    world.limit(RED, 2)
    world.limit(BLUE, 4)
    shared = chain("shared", 1)
    world.save(shared, tenant=BLUE)
    world.release(world.match(shared, tenant=RED))
    world.save(chain("own", 1), tenant=RED)
    log = told(world)
    world.limit(RED, 1.25)
    happening = only(log, "parted")
    assert (happening.tenant, happening.block_hash) == ("red", shared[0])
    assert happening.detail["users_left"] == 1
    assert (happening.detail["why"], happening.detail["used"]) == ("limit lowered", 3 * BLOCK_BYTES // 2)


def test_what_is_adopted_after_a_restart_is_told() -> None:
    world = World(4)
    log, hashes = told(world), chain("a", 2)
    rows = [
        JournalRow(
            block_hash=block_hash,
            parent=hashes[i - 1] if i else ROOT,
            scope_id=b"s" * 32,
            tenants=(RED,),
            depth=i,
            slot=i,
            checksum=checksum(block_hash),
            hits=i,
        )
        for i, block_hash in enumerate(hashes)
    ]
    adopt(world.core, rows, lambda batch: [True] * len(batch), in_time=lambda: True)
    assert [(h.what, h.block_hash, h.detail) for h in whole(log)] == [
        ("adopted", hashes[0], {"depth": 0, "hits": 0}),
        ("adopted", hashes[1], {"depth": 1, "hits": 1}),
    ]


def test_lending_to_a_peer_is_not_told() -> None:
    world = World(2)
    hashes = chain("a", 1)
    world.save(hashes)
    log = told(world)
    world.release(world.match(hashes, tenant=NOBODY))
    assert log.take() == []


def test_a_core_without_a_log_notes_nothing_and_one_with_it_is_bounded() -> None:
    world = World(2)
    world.save(chain("a", 1))
    assert world.core.why is None
    log = WhyLog()
    for number in range(UNTAKEN_MAX + 3):
        log.note("stored", BlockHash(number.to_bytes(32, "big")), "red")
    assert log.lost == 3
    taken = log.take()
    assert (len(taken), happening_of(taken[0]).block_hash[-1], log.take()) == (UNTAKEN_MAX, 3, [])


def test_a_long_run_is_told_in_parts_that_say_where_they_begin() -> None:
    log, hashes = WhyLog(), chain("a", RUN_BLOCKS_MAX + 1)
    log.note_run("stored", hashes, "red", depth=2)
    assert [(h.n_blocks, h.detail["depth"]) for h in whole(log)] == [(RUN_BLOCKS_MAX, 2), (1, 2 + RUN_BLOCKS_MAX)]


def test_a_tenant_without_a_limit_says_so() -> None:
    world = World(1, lower_tier=False)
    world.save(chain("a", 1))
    log = told(world)
    world.save(chain("b", 1))
    assert only(log, "evicted").detail["limit"] == NO_LIMIT
    assert NO_LIMIT < 0


def test_a_sequences_blocks_are_told_once_whole_and_its_refusal_names_no_block() -> None:
    world = World(2)
    log = told(world)
    sequence = opened(world, [1] * (BLOCK_TOKENS + 1))
    happening = only(log, "stored")
    assert (happening.block_hash, happening.n_blocks) == (sequence.hashes[0], 1)
    with pytest.raises(OutOfBlocks):
        begin(world, opened(world), [2] * BLOCK_TOKENS)
    refused = only(log, "refused")
    assert (refused.block_hash, refused.n_blocks, refused.detail["why"]) == (NO_HASH, 1, "full")
