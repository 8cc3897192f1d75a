"""Second copies as the core sees them: made as blocks become whole, looked for later, tried again in due time."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest

from tests.unit.core.builders import BLUE, PEER, RED, REDIS, World, chain
from tiered.core.copies import RETRY_S, RETRY_S_MAX, SecondCopies
from tiered.core.demote import copy_and_keep
from tiered.core.second import due, next_slice, note_place, note_tried, were_copied
from tiered.tenancy.copies import two_copies
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import BlockHash, TenantId


def doubled(n_blocks: int, **options: object) -> World:
    """A world in which RED asks for two copies, and nobody else."""
    world = World(n_blocks, **options)  # type: ignore[arg-type]
    world.limit(RED, None, copies=2)
    return world


def find(world: World, hashes: list[BlockHash], *, in_redis: bool, single: bool, now: float = 0.0) -> None:
    """A whole turn that finds all of them so."""
    assert next_slice(world.core).ends_turn
    for block_hash in hashes:
        stored = 90 if in_redis else None
        note_place(world.core, block_hash, stored_bytes=stored, is_single=single, counts_here=True)
    world.core.seconds.end_turn(now)


def test_a_block_is_copied_as_it_becomes_whole_and_leaves_without_another_copy() -> None:
    world, hashes = doubled(4, demote="evicted"), chain("p", 3)
    world.save(hashes)
    assert {job.block_hash for job in world.seam.copies} == set(hashes)
    assert {job.copies for job in world.seam.copies} == {2}
    world.copy_all()
    assert world.hot(hashes) == 3
    world.save(chain("q", 4), force=False)
    assert world.hot(hashes) == 0
    assert {job.block_hash for job in world.seam.copies} == set(chain("q", 4))


@pytest.mark.parametrize("demote", ["never", "reused"])
def test_two_copies_are_made_whatever_is_done_with_what_leaves(demote: str) -> None:
    world, hashes = doubled(4, demote=demote), chain("p", 2)
    world.save(hashes)
    for job in list(world.seam.copies):
        world.copy(job, copied=False)  # no staging buffer was free
    world.save(chain("q", 3), force=False)
    assert world.hot(hashes) == 1
    assert world.core.counters[RED].demoted == 1


def test_who_asks_for_one_copy_has_none_made() -> None:
    world = doubled(8)
    world.save(chain("p", 3), tenant=BLUE)
    assert world.seam.copies == []


def test_a_default_of_two_holds_for_the_unnamed_and_not_for_who_asks_for_one() -> None:
    policies = {
        DEFAULT_TENANT: TenantPolicy(tenant=DEFAULT_TENANT, copies=2),
        RED: TenantPolicy(tenant=RED),
        BLUE: TenantPolicy(tenant=BLUE, copies=2),
    }
    two = two_copies(policies)
    assert [two.asked_by(TenantId(t)) for t in (RED, BLUE, "anybody")] == [False, True, True]
    assert bool(two)
    assert not two_copies({RED: policies[RED]})


def test_what_came_from_redis_or_a_peer_has_its_second_there() -> None:
    world = doubled(8)
    for name, origin in (("p", REDIS), ("q", PEER)):
        hashes = chain(name, 2)
        lease = world.match(hashes, below=[origin])
        world.load(lease)
        world.answer(world.seam.fetches[0])
        world.release(lease, used_tokens=8)
        assert world.hot(hashes) == 2
    assert world.seam.copies == []
    copied = were_copied(world.core, chain("p", 2) + chain("q", 2))
    assert copied == set(chain("p", 2))


def test_a_block_that_redis_turned_out_not_to_have_is_copied_when_it_leaves() -> None:
    world, hashes = doubled(4), chain("p", 1)
    world.save(hashes)
    world.copy_all()
    find(world, hashes, in_redis=False, single=True)
    world.save(chain("q", 4), force=False)
    assert world.core.counters[RED].demoted == 1


def test_a_shared_block_is_copied_at_the_cost_of_who_asks_for_two() -> None:
    world, hashes = World(8), chain("p", 2)
    world.limit(BLUE, None, sharing="public")
    world.limit(RED, None, sharing="public", copies=2)
    world.save(hashes, tenant=BLUE)
    world.release(world.match(hashes, tenant=RED), used_tokens=8)
    assert world.core.table[world.id_of(hashes[0])].tenants == (BLUE, RED)
    assert due(world.core, next_slice(world.core).hashes, now=0.0) == hashes
    copy_and_keep(world.core, deque(hashes))
    world.turn()
    assert {(job.tenant, job.copies) for job in world.seam.copies} == {(RED, 2)}


def test_a_turn_looks_at_each_block_once_and_at_nobody_elses() -> None:
    world = doubled(16)
    world.save(chain("p", 5))
    world.save(chain("q", 5), tenant=BLUE)
    part = next_slice(world.core)
    assert (set(part.hashes), part.begins, part.ends_turn) == (set(chain("p", 5)), 0, True)


def test_what_is_found_is_shown_once_the_turn_is_over() -> None:
    world, hashes = doubled(8), chain("p", 3)
    world.save(hashes)
    note_place(world.core, hashes[0], stored_bytes=90, is_single=False, counts_here=True)
    note_place(world.core, hashes[1], stored_bytes=90, is_single=False, counts_here=False)
    note_place(world.core, hashes[2], stored_bytes=None, is_single=True, counts_here=True)
    assert world.core.seconds.uses == {}
    world.core.seconds.end_turn(0.0)
    use = world.core.seconds.uses[RED]
    assert (use.second_blocks, use.second_bytes, use.single_blocks) == (1, 90, 1)


def test_copies_of_what_stays_leave_room_for_those_of_what_leaves() -> None:
    world = World(16, leaving_max=8)
    hashes = chain("p", 10)
    world.save(hashes)
    wanted = deque(hashes)
    copy_and_keep(world.core, wanted, part=0.5)
    assert (len(world.core.recalled), len(wanted)) == (4, 6)


def refused_turn(world: World, hashes: list[BlockHash], now: float) -> int:
    """A turn in which Redis takes nothing; how many were asked for."""
    asked = due(world.core, hashes, now=now)
    again = were_copied(world.core, asked)
    note_tried(world.core, asked, missing=frozenset(asked), again=again, now=now)
    find(world, hashes, in_redis=False, single=True, now=now)
    return len(asked)


def test_what_redis_refuses_is_asked_for_ever_less_often_and_at_once_when_it_has_been_taken() -> None:
    world, hashes = doubled(8), chain("p", 3)
    world.save(hashes)
    world.copy_all()
    asked_at = [now for now in range(300) if refused_turn(world, hashes, float(now))]
    gaps = [after - before for before, after in pairwise(asked_at)]
    assert gaps[:5] == [RETRY_S * 2**n for n in range(5)]
    assert set(gaps[5:]) == {RETRY_S_MAX}
    find(world, hashes, in_redis=True, single=False, now=1_000.0)
    assert due(world.core, hashes, now=1_000.0) == hashes


def test_within_a_turn_a_tenant_of_whom_nothing_was_taken_is_left_alone_and_others_are_not() -> None:
    seconds = SecondCopies()
    seconds.tried(RED, n_made=0, n_refused=4, n_again=0, now=0.0)
    seconds.tried(BLUE, n_made=2, n_refused=2, n_again=0, now=0.0)
    assert (seconds.may_try(RED, 0.0), seconds.may_try(BLUE, 0.0)) == (False, True)
    assert (seconds.made, seconds.refused) == (2, 6)


def test_blocks_that_had_no_copy_yet_make_nobody_wait() -> None:
    world, hashes = doubled(8), chain("p", 3)
    world.save(hashes)
    for now in range(5):
        assert due(world.core, hashes, now=float(now)) == hashes
        note_tried(world.core, hashes, missing=(), again=(), now=float(now))
        find(world, hashes, in_redis=False, single=True, now=float(now))


def test_blocks_that_left_meanwhile_change_nothing() -> None:
    world, gone = doubled(4), chain("gone", 2)
    note_place(world.core, gone[0], stored_bytes=1, is_single=True, counts_here=True)
    note_tried(world.core, gone, missing=gone, again=(), now=0.0)
    assert due(world.core, gone, now=0.0) == []
    world.core.seconds.end_turn(0.0)
    assert (world.core.seconds.looked, world.core.seconds.refused, world.core.seconds.uses) == (0, 0, {})
