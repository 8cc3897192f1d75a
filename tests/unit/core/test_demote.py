"""demote and fairness: who gives, what is copied, how many copies at once, and hits on what is leaving."""

from __future__ import annotations

import pytest

from tests.unit.core.builders import BLUE, RED, REDIS, World, chain
from tiered.blocks.record import NO_TENANT
from tiered.blocks.state import BlockState
from tiered.core.allocate import Shortfall
from tiered.core.demote import make_room
from tiered.core.pump import pump
from tiered.core.release import drop_connection
from tiered.types import NO_HASH, TenantId


def fill(world: World, name: str, n_blocks: int, tenant: TenantId) -> None:
    """Many short prompts, so that anything of them may leave at once."""
    for index in range(n_blocks):
        world.save(chain(f"{name}{index}", 1), tenant=tenant)


def test_a_block_that_leaves_is_matchable_until_its_copy_is_made() -> None:
    world, prompt = World(4), chain("p", 1)
    world.save(prompt)
    make_room(world.core, asking=NO_TENANT, n_blocks=1)
    world.turn()
    assert world.hot(prompt) == 1
    (job,) = world.seam.copies
    assert (job.block_hash, job.tenant, job.depth) == (prompt[0], RED, 0)
    world.copy(job)
    assert world.hot(prompt) == 0
    assert (world.core.count(RED).evicted, world.core.count(RED).demoted) == (1, 1)


def test_a_copy_that_fails_still_lets_the_block_leave() -> None:
    world, prompt = World(4), chain("p", 1)
    world.save(prompt)
    make_room(world.core, asking=NO_TENANT, n_blocks=1)
    world.turn()
    world.copy(world.seam.copies[0], copied=False)
    assert world.hot(prompt) == 0
    assert (world.core.count(RED).evicted, world.core.count(RED).demoted) == (1, 0)


@pytest.mark.parametrize("copied", [True, False])
def test_a_hit_brings_a_leaving_block_back_and_its_late_copy_changes_nothing(copied: bool) -> None:
    world, prompt = World(4), chain("p", 1)
    world.save(prompt)
    make_room(world.core, asking=NO_TENANT, n_blocks=1)
    world.turn()
    lease = world.match(prompt)
    assert world.core.blocks_in(BlockState.READY) == len(lease.pinned) == 1
    world.copy(world.seam.copies[0], copied=copied)
    assert world.hot(prompt) == 1
    world.release(lease)
    assert world.core.count(RED).evicted == 0
    assert world.core.table.may_leave(world.id_of(prompt[0]))


def test_a_block_called_back_is_not_overwritten_while_its_copy_is_under_way() -> None:
    """The mover reads the slot whenever it gets to it: other bytes there would be stored under the old hash."""
    world, prompt, other = World(1), chain("p", 1), chain("q", 1)
    world.save(prompt)
    make_room(world.core, asking=NO_TENANT, n_blocks=1)
    world.turn()
    world.release(world.match(prompt))
    save = world.open(other)
    assert world.allocate(save, force=True).block_ids == ()
    assert world.hot(prompt) == 1
    world.copy(world.seam.copies[0])
    assert len(world.allocate(save, force=True).block_ids) == 1


def test_a_hit_in_the_middle_of_a_chain_brings_all_of_it_back() -> None:
    world, prompt = World(4), chain("p", 3)
    world.save(prompt)
    make_room(world.core, asking=NO_TENANT, n_blocks=3)
    world.turn()
    assert len(world.match(prompt).pinned) == 3
    world.copy_all()
    assert world.hot(prompt) == 3


def test_a_parent_stays_while_a_child_is_leaving() -> None:
    world, prompt = World(4), chain("p", 2)
    world.save(prompt)
    assert make_room(world.core, asking=NO_TENANT, n_blocks=2) == 1
    world.turn()
    world.copy_all()
    assert world.hot(prompt) == 1


def test_at_most_so_many_copies_are_under_way() -> None:
    world = World(16, leaving_max=3)
    fill(world, "old", 16, RED)
    for _ in range(3):
        make_room(world.core, asking=NO_TENANT, n_blocks=16)
        world.turn()
    assert len(world.seam.copies) == 3


def test_copies_of_blocks_called_back_count_among_those_under_way() -> None:
    world = World(16, leaving_max=3)
    fill(world, "old", 16, RED)
    for _ in range(4):
        make_room(world.core, asking=NO_TENANT, n_blocks=16)
        world.turn()
        for index in range(16):
            world.release(world.match(chain(f"old{index}", 1)))
    assert len(world.seam.copies) == 3


def test_demote_never_copies_nothing() -> None:
    world = World(4, demote="never")
    fill(world, "old", 4, RED)
    assert make_room(world.core, asking=NO_TENANT, n_blocks=2) == 2
    world.turn()
    assert world.core.blocks_in(BlockState.FREE) == 2
    assert world.seam.copies == []


def test_demote_reused_copies_only_what_was_matched_since() -> None:
    world = World(4, demote="reused")
    fill(world, "old", 4, RED)
    world.release(world.match(chain("old0", 1)))
    make_room(world.core, asking=NO_TENANT, n_blocks=4)
    world.turn()
    assert [job.block_hash for job in world.seam.copies] == chain("old0", 1)
    assert world.core.blocks_in(BlockState.FREE) == 3


def test_without_a_lower_tier_nothing_is_copied() -> None:
    world = World(4, lower_tier=False)
    fill(world, "old", 4, RED)
    make_room(world.core, asking=NO_TENANT, n_blocks=2)
    world.turn()
    assert world.seam.copies == []


def test_room_without_copies_is_made_beyond_the_bound_on_copies() -> None:
    world = World(8, leaving_max=1)
    fill(world, "old", 8, RED)
    make_room(world.core, asking=NO_TENANT, n_blocks=1)
    assert make_room(world.core, asking=NO_TENANT, n_blocks=4, copy=False) == 4
    world.turn()
    assert world.core.blocks_in(BlockState.FREE) == 4


def test_a_refused_copy_becomes_a_plain_eviction() -> None:
    world = World(4, free_target_blocks=2)
    world.seam.room = 0
    fill(world, "old", 4, RED)
    assert world.core.blocks_in(BlockState.FREE) == 2
    assert world.core.count(RED).demoted == 0


def test_pinned_blocks_do_not_leave() -> None:
    world, prompt = World(4), chain("p", 2)
    world.save(prompt)
    lease = world.match(prompt)
    assert make_room(world.core, asking=NO_TENANT, n_blocks=4, copy=False) == 0
    world.release(lease)
    assert make_room(world.core, asking=NO_TENANT, n_blocks=4, copy=False) == 2
    world.turn()


def test_tend_keeps_the_free_target_by_copies_ahead_of_need() -> None:
    world = World(10, free_target_blocks=3)
    fill(world, "old", 10, RED)
    world.copy_all()
    assert world.core.blocks_in(BlockState.FREE) == 3


@pytest.mark.parametrize("over_quota", ["evict_own", "refuse"])
def test_a_lowered_limit_brings_the_tenant_down(over_quota: str) -> None:
    world = World(16, leaving_max=4)
    fill(world, "red", 8, RED)
    fill(world, "blue", 8, BLUE)
    world.limit(RED, 3, over_quota=over_quota)
    assert len(world.seam.copies) == 4
    world.copy_all()
    assert (world.used(RED), world.used(BLUE)) == (3, 8)


def test_a_lowered_limit_takes_no_more_than_the_excess_however_often_it_is_tended() -> None:
    world = World(16)
    fill(world, "red", 8, RED)
    world.limit(RED, 5.5)
    for _ in range(5):
        world.turn()
    world.copy_all()
    assert world.used(RED) == 5


def test_a_lowered_limit_waits_for_pins() -> None:
    world, prompt = World(8), chain("p", 4)
    world.save(prompt)
    lease = world.match(prompt)
    world.limit(RED, 1)
    assert world.used(RED) == 4
    world.release(lease)
    world.copy_all()
    assert world.used(RED) == 1
    assert world.hot(prompt) == 1


def test_a_tenant_alone_may_fill_the_pool() -> None:
    world = World(8)
    world.limit(RED, None, weight=0.1)
    fill(world, "red", 20, RED)
    assert world.used(RED) == 8


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize(("weights", "shares"), [((1.0, 1.0), (20, 20)), ((3.0, 1.0), (30, 10))])
def test_two_tenants_that_compete_come_to_their_weighted_shares(
    weights: tuple[float, float], shares: tuple[int, int], force: bool
) -> None:
    world = World(40)
    world.limit(RED, None, weight=weights[0])
    world.limit(BLUE, None, weight=weights[1])
    fill(world, "early", 40, BLUE)
    for step in range(60):
        world.save(chain(f"red{step}", 1), tenant=RED, force=force)
        world.save(chain(f"blue{step}", 1), tenant=BLUE, force=force)
    assert world.used(RED) == pytest.approx(shares[0], abs=1)
    assert world.used(BLUE) == pytest.approx(shares[1], abs=1)


def test_long_saves_do_not_push_another_tenant_below_its_share() -> None:
    """While it is saved a chain is pinned; a tenant whose own blocks may not leave does not take others' share."""
    world = World(40)
    fill(world, "red", 20, RED)
    fill(world, "blue", 20, BLUE)
    for step in range(5):
        assert world.save(chain(f"r{step}", 39), tenant=RED, window=8)[1] is Shortfall.FULL
        assert world.used(BLUE) == 20
        assert world.save(chain(f"b{step}", 39), tenant=BLUE, window=8)[1] is Shortfall.FULL
        assert world.used(RED) == 20


def test_a_newcomer_gets_in_where_all_hold_equally_little() -> None:
    world = World(4)
    for name in ("a", "b", "c", "d"):
        world.save(chain(name, 1), tenant=TenantId(name))
    assert world.save(chain("new", 1), tenant=RED) == (1, Shortfall.NONE)


@pytest.mark.parametrize("reserved", [3, 2.5])
def test_reserved_bytes_are_never_taken_by_others(reserved: float) -> None:
    world = World(8)
    world.limit(BLUE, None, hot_reserved_blocks=reserved, weight=0.001)
    world.limit(RED, None, weight=1000)
    fill(world, "blue", 8, BLUE)
    fill(world, "red", 30, RED)
    assert world.used(BLUE) == 3
    assert world.used(RED) == 5


def test_a_tenant_gets_its_reserved_bytes_back_whoever_holds_them() -> None:
    world = World(8)
    world.limit(BLUE, None, hot_reserved_blocks=4, weight=0.001)
    world.limit(RED, None, weight=1000)
    fill(world, "red", 8, RED)
    fill(world, "blue", 12, BLUE)
    assert world.used(BLUE) == 4


def test_work_ahead_of_need_takes_no_reserved_bytes() -> None:
    world = World(8, free_target_blocks=4)
    world.limit(BLUE, None, hot_reserved_blocks=7)
    fill(world, "blue", 8, BLUE)
    world.copy_all()
    assert world.used(BLUE) == 7


def test_a_tenant_that_holds_only_its_reserved_bytes_gives_to_itself() -> None:
    world = World(4)
    world.limit(BLUE, None, hot_reserved_blocks=4)
    fill(world, "blue", 4, BLUE)
    assert world.save(chain("next", 2), tenant=BLUE) == (2, Shortfall.NONE)
    assert world.save(chain("red", 1), tenant=RED) == (0, Shortfall.FULL)


def test_a_child_of_another_tenant_keeps_its_parent_here() -> None:
    world, prompt = World(8), chain("p", 4)
    world.save(prompt[:2], tenant=RED)
    world.save(prompt, tenant=BLUE)
    world.limit(RED, 0)
    world.copy_all()
    assert world.hot(prompt) == 4
    world.limit(BLUE, 0)
    world.copy_all()
    assert world.hot(prompt) == 0


def test_all_that_was_announced_is_taken_back_when_it_leaves() -> None:
    world, prompt = World(8), chain("p", 4)
    world.save(prompt)
    events = world.core.drain_events()
    assert set(events.stored) == set(prompt)
    assert events.removed == ()
    drop_connection(world.core, 1, now=world.now)
    make_room(world.core, asking=NO_TENANT, n_blocks=4, copy=False)
    world.save(prompt[:1])
    events = world.core.drain_events()
    assert set(events.stored) == {prompt[0]}
    assert set(events.removed) == set(prompt[1:])
    pump(world.core, world.seam)


@pytest.mark.parametrize("held", [0, 1, 8])
def test_a_prompt_longer_than_the_fair_share_takes_no_more_than_that(held: int) -> None:
    """Whether its tenant held nothing before, or has given all it held for the longer prompt."""
    world = World(16)
    fill(world, "red", 16 - held, RED)
    if held:
        fill(world, "blue", held, BLUE)
    assert world.save(chain("long", 16), tenant=BLUE)[1] is Shortfall.FULL
    assert (world.used(RED), world.used(BLUE)) == (8, 8)


def test_with_always_each_block_is_copied_once_as_it_becomes_whole_and_stays() -> None:
    world, prompt = World(8, demote="always"), chain("p", 3)
    world.save(prompt)
    assert [job.block_hash for job in world.seam.copies] == list(reversed(prompt))
    assert [job.parent for job in world.seam.copies] == [prompt[1], prompt[0], NO_HASH]
    assert world.hot(prompt) == 3
    world.copy_all()
    make_room(world.core, asking=NO_TENANT, n_blocks=1)
    world.turn()
    assert world.hot(prompt) == 2  # below it is already, so it left at once
    assert world.seam.copies == []


def test_with_always_a_copy_that_failed_is_made_when_the_block_leaves() -> None:
    world, prompt = World(8, demote="always"), chain("p", 1)
    world.save(prompt)
    world.copy(world.seam.copies[0], copied=False)
    make_room(world.core, asking=NO_TENANT, n_blocks=1)
    world.turn()
    assert [job.block_hash for job in world.seam.copies] == prompt


def test_with_always_copies_wait_for_each_other_and_none_is_forgotten() -> None:
    world, prompt = World(16, demote="always", leaving_max=2), chain("p", 7)
    world.save(prompt)
    seen = []
    while world.seam.copies:
        assert len(world.seam.copies) <= 2
        seen.append(world.seam.copies[0].block_hash)
        world.copy(world.seam.copies[0])
    assert sorted(seen) == sorted(prompt)


def test_with_always_what_came_from_redis_is_not_sent_back() -> None:
    world, prompt = World(8, demote="always"), chain("p", 2)
    lease = world.match(prompt, below=[REDIS])
    world.load(lease)
    world.answer(world.seam.fetches[0])
    world.release(lease)
    assert world.hot(prompt) == 2
    assert world.seam.copies == []


def test_with_always_a_block_that_left_before_its_copy_began_is_not_read() -> None:
    world = World(4, demote="always", leaving_max=1)
    world.save(chain("p", 2))
    first = world.seam.copies[0]
    world.save(chain("q", 4))
    while world.seam.copies:
        job = world.seam.copies[0]
        assert world.core.table[job.block_id].block_hash == job.block_hash
        world.copy(job)
    assert first not in world.seam.copies


def ask(world: World, name: str, n_blocks: int, tenant: TenantId) -> None:
    """A request as an engine makes it: look up, and store what was missing."""
    world.release(world.match(chain(name, n_blocks), tenant=tenant))
    world.save(chain(name, n_blocks), tenant=tenant)


def test_a_reservation_that_its_tenant_left_idle_is_lent_and_comes_back_on_demand() -> None:
    world = World(8, lower_tier=False)
    world.limit(RED, None, hot_reserved_blocks=4)
    world.limit(BLUE, None, hot_reserved_blocks=4)
    ask(world, "red", 4, RED)
    ask(world, "blue", 4, BLUE)
    for turn in range(300):
        ask(world, f"blue {turn}", 2, BLUE)
    assert (world.used(RED), world.used(BLUE)) == (0, 8)
    for turn in range(2):
        ask(world, f"red {turn}", 2, RED)
    assert world.used(RED) == 4


def test_what_a_reservation_still_serves_is_not_taken_by_whoever_asks_for_more() -> None:
    world = World(8, lower_tier=False)
    world.limit(RED, None, hot_reserved_blocks=4)
    for turn in range(300):
        ask(world, "red", 4, RED)
        assert world.hot(chain("red", 4)) == 4
        ask(world, f"blue {turn}", 3, BLUE)
