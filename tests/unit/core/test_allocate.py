"""allocate, commit, abort: slots in chain order, room made for them, and bounded answers when there is none."""

from __future__ import annotations

import pytest

from tests.unit.core.builders import BLUE, RED, REDIS, World, chain
from tiered.blocks.state import BlockState
from tiered.core.allocate import Shortfall
from tiered.core.commit import abort, commit
from tiered.core.release import drop_connection, expire
from tiered.errors import OwnershipError


def test_a_save_stores_what_is_not_here_yet() -> None:
    world, prompt = World(8), chain("p", 5)
    assert world.save(prompt[:2]) == (2, Shortfall.NONE)
    lease = world.open(prompt)
    grant = world.allocate(lease)
    assert (grant.first_index, len(grant.block_ids)) == (2, 3)
    world.commit(lease)
    assert world.allocate(lease).block_ids == ()
    world.release(lease)
    assert world.hot(prompt) == 5


def test_an_unfinished_block_is_never_matchable() -> None:
    world, prompt = World(8), chain("p", 3)
    lease = world.open(prompt)
    world.allocate(lease)
    assert world.match(prompt).pinned == []
    world.commit(lease, 1)
    assert len(world.match(prompt).pinned) == 1


def test_abort_gives_back_in_reverse_and_keeps_what_was_committed() -> None:
    world, prompt = World(8), chain("p", 4)
    lease = world.open(prompt)
    world.allocate(lease)
    world.commit(lease, 2)
    assert abort(world.core, lease) == 2
    world.turn()
    assert world.hot(prompt) == 2
    assert world.core.blocks_in(BlockState.FREE) == 6


def test_more_commits_than_slots_change_nothing() -> None:
    world, prompt = World(8), chain("p", 2)
    lease = world.open(prompt)
    world.allocate(lease)
    with pytest.raises(OwnershipError):
        commit(world.core, lease, [None] * 3)
    world.turn()
    assert len(lease.filling) == 2
    assert world.hot(prompt) == 0


def test_another_engine_filling_the_next_block_means_busy_and_not_a_second_copy() -> None:
    world, prompt = World(8), chain("p", 3)
    first, second = world.open(prompt), world.open(prompt, connection=2)
    world.allocate(first, n_blocks_max=2)
    grant = world.allocate(second)
    assert (grant.first_index, grant.block_ids, grant.shortfall) == (0, (), Shortfall.BUSY)
    world.commit(first, 1)
    assert world.allocate(second).shortfall is Shortfall.BUSY
    world.commit(first)
    assert world.allocate(second).first_index == 2


def test_a_chain_may_be_allocated_ahead_of_its_commits() -> None:
    world, prompt = World(8), chain("p", 4)
    lease = world.open(prompt)
    assert world.allocate(lease, n_blocks_max=1).first_index == 0
    assert world.allocate(lease, n_blocks_max=2).first_index == 1
    assert world.allocate(lease, n_blocks_max=2).first_index == 3
    world.commit(lease)
    assert world.hot(prompt) == 4


@pytest.mark.parametrize("n_blocks_max", [0, -1, -2])
def test_asking_for_no_slots_grants_none(n_blocks_max: int) -> None:
    world = World(8)
    assert world.allocate(world.open(chain("p", 4)), n_blocks_max=n_blocks_max).block_ids == ()


def test_a_hash_that_comes_twice_in_one_chain_is_filled_once() -> None:
    """No honest chain has one; the core must not break its maps over a dishonest engine."""
    world, prompt = World(8), chain("p", 2)
    lease = world.open([prompt[0], prompt[0], prompt[1]])
    assert len(world.allocate(lease).block_ids) == 1
    world.commit(lease)
    drop_connection(world.core, 1, now=world.now)
    world.turn()
    assert world.hot(prompt) == 1


def test_a_chain_longer_than_the_pool_keeps_its_beginning_and_says_full() -> None:
    world, prompt = World(8), chain("p", 20)
    assert world.save(prompt, window=3) == (8, Shortfall.FULL)
    assert world.hot(prompt) == 8
    evicted = world.core.count(RED).evicted
    assert world.save(prompt, window=3) == (0, Shortfall.FULL)
    assert world.hot(prompt) == 8
    assert world.core.count(RED).evicted == evicted == 0


def test_a_chain_longer_than_the_limit_keeps_its_beginning_and_says_quota() -> None:
    world, prompt = World(8), chain("p", 20)
    world.limit(RED, 5)
    world.save(chain("old", 5))
    assert world.save(prompt, window=3) == (5, Shortfall.QUOTA)
    assert world.hot(prompt) == 5
    assert world.save(prompt, window=3) == (0, Shortfall.QUOTA)
    assert world.hot(prompt) == 5


def test_what_is_refused_is_counted_once() -> None:
    world = World(8)
    world.limit(RED, 5)
    world.save(chain("p", 20))
    assert (world.core.count(RED).refused, world.core.count(RED).refused_by_limit) == (15, 15)


def test_what_is_refused_for_want_of_room_is_not_put_down_to_a_limit() -> None:
    world = World(4)
    world.save(chain("p", 4))
    world.match(chain("p", 4))
    world.save(chain("q", 3), tenant=BLUE)
    assert (world.core.count(BLUE).refused, world.core.count(BLUE).refused_by_limit) == (3, 0)


def test_over_quota_refuse_lets_nothing_leave() -> None:
    world, old = World(8), chain("old", 3)
    world.limit(RED, 4, over_quota="refuse")
    world.save(old)
    assert world.save(chain("p", 4)) == (1, Shortfall.QUOTA)
    assert world.hot(old) == 3


def test_a_limit_of_nothing_admits_nothing() -> None:
    world = World(8)
    world.limit(RED, 0)
    assert world.save(chain("p", 2)) == (0, Shortfall.QUOTA)


def test_making_room_does_not_take_the_parent_of_the_next_slot() -> None:
    world, prompt = World(4), chain("p", 6)
    world.save(prompt[:3])
    world.save(chain("old", 1))
    for block_id in list(world.victims()):
        world.core.policies[RED].on_hit(block_id)  # the prompt's own end is now the best victim but one
    assert world.save(prompt) == (1, Shortfall.FULL)
    assert world.hot(prompt) == 4


def test_a_parent_that_is_leaving_is_called_back() -> None:
    world, prompt = World(3), chain("p", 3)
    world.save(prompt[:2])
    world.limit(RED, 1)
    assert world.core.blocks_in(BlockState.LEAVING) == 1
    world.limit(RED, None)
    lease = world.open(prompt)
    assert world.allocate(lease).first_index == 2
    world.copy_all()
    world.commit(lease)
    assert world.hot(prompt) == 3


def test_asking_again_while_blocks_leave_evicts_no_more_than_was_asked_for() -> None:
    """A host asks again at every turn of the seam, whoever caused it."""
    world = World(16)
    for name in range(16):
        world.save(chain(f"old{name}", 1))
    lease = world.open(chain("p", 2))
    for _ in range(5):
        assert world.allocate(lease).shortfall is Shortfall.SOON
    assert world.core.blocks_in(BlockState.LEAVING) == 2


def test_asking_again_at_the_limit_evicts_no_more_than_was_asked_for() -> None:
    world = World(16)
    for name in range(8):
        world.save(chain(f"old{name}", 1))
    world.limit(RED, 8)
    lease = world.open(chain("p", 2))
    for _ in range(5):
        assert world.allocate(lease).shortfall is Shortfall.SOON
    assert world.core.blocks_in(BlockState.LEAVING) == 2


def test_soon_is_said_only_while_something_is_on_its_way() -> None:
    """Else a host waits for a completion that never comes."""
    world, old = World(8, demote="never"), chain("old", 4)
    world.save(old)
    world.save(chain("idle", 1))
    world.match(old)
    lease = world.open(chain("p", 2))
    world.core.set_policies({RED: world.core.ledger.policy(RED).model_copy(update={"hot_limit_bytes": 200})})
    assert world.allocate(lease).shortfall is Shortfall.QUOTA


def test_force_makes_room_without_copies() -> None:
    world = World(4)
    for name in range(4):
        world.save(chain(f"old{name}", 1))
    lease = world.open(chain("p", 2))
    assert world.allocate(lease).shortfall is Shortfall.SOON
    assert len(world.seam.copies) == 2
    while len(lease.filling) < 2:
        assert world.allocate(lease, force=True).block_ids
    assert len(world.seam.copies) == 2
    assert (world.core.count(RED).evicted, world.core.count(RED).demoted) == (2, 0)


def test_a_save_outlives_its_time_until_its_connection_ends() -> None:
    world, prompt = World(8), chain("p", 3)
    lease = world.match(prompt)
    world.allocate(lease)
    assert expire(world.core, 1e9) == 0
    world.commit(lease)
    assert expire(world.core, 1e9) == 1
    world.turn()


def test_a_save_of_many_windows_leaves_children_younger_than_no_parent() -> None:
    """The order in which a policy by recency proposes leaves first, so that finding a victim needs no search."""
    world, prompt = World(64), chain("p", 40)
    world.save(prompt[:7], window=3)
    world.release(world.match(prompt[:7]))
    world.save(prompt, window=5)
    in_order = [world.core.table[b].depth for b in world.victims()]
    assert in_order == sorted(in_order, reverse=True)


def test_a_load_of_many_jobs_leaves_children_younger_than_no_parent() -> None:
    world, prompt = World(128), chain("p", 100)
    world.save(prompt[:7])
    lease = world.match(prompt, below=[REDIS])
    world.load(lease)
    while world.seam.fetches:
        world.answer(world.seam.fetches[0])
    world.release(lease)
    in_order = [world.core.table[b].depth for b in world.victims()]
    assert in_order == sorted(in_order, reverse=True)


def test_each_tenant_is_charged_for_what_it_wrote_and_its_part_of_what_it_hangs_on() -> None:
    world, prompt = World(8), chain("p", 4)
    world.save(prompt[:2], tenant=RED)
    world.save(prompt, tenant=BLUE)
    assert (world.used(RED), world.used(BLUE)) == (1, 3)
