"""Blocks that several tenants use: charged in equal parts, to the byte, and within everybody's limit at all times."""

from __future__ import annotations

import pytest

from tests.unit.core.builders import BLOCK_BYTES, BLUE, RED, World, chain
from tiered.core.allocate import Shortfall, answer
from tiered.core.demote import make_room
from tiered.types import TenantId

GREEN = TenantId("green")
PROMPT = chain("p", 3)


def used(world: World, *tenants: TenantId) -> list[int]:
    return [world.core.ledger.used_bytes(tenant) for tenant in tenants]


def use(world: World, tenant: TenantId, n_blocks: int = 3) -> int:
    """Ask for the prompt and be done; returns how much of it was hot."""
    lease = world.match(PROMPT[:n_blocks], tenant=tenant)
    n_hot = len(lease.pinned)
    world.release(lease)
    return n_hot


def test_who_asks_for_a_block_pays_its_part_of_it() -> None:
    world = World(8, lower_tier=False)
    world.save(PROMPT, tenant=RED)
    assert use(world, BLUE) == 3
    assert used(world, RED, BLUE) == [150, 150]
    assert use(world, GREEN, 1) == 1
    assert used(world, RED, BLUE, GREEN) == [134, 133, 33]
    assert [world.core.ledger.used_blocks(tenant) for tenant in (RED, BLUE, GREEN)] == [3, 3, 1]


def test_when_one_lets_go_the_others_take_its_part_over_and_the_last_one_out_frees_the_slot() -> None:
    world = World(8, lower_tier=False)
    world.save(PROMPT, tenant=RED)
    use(world, BLUE)
    world.limit(RED, 0)
    assert used(world, RED, BLUE) == [0, 300]
    assert world.hot(PROMPT) == 3
    world.limit(BLUE, 0)
    assert used(world, RED, BLUE) == [0, 0]
    assert world.hot(PROMPT) == 0


def test_a_tenant_parts_from_the_end_of_a_prefix_though_another_goes_on_from_there() -> None:
    world = World(8, lower_tier=False)
    world.save(PROMPT[:2], tenant=RED)
    world.save(PROMPT, tenant=BLUE)
    assert used(world, RED, BLUE) == [100, 200]
    world.limit(RED, 0.5)
    assert used(world, RED, BLUE) == [50, 250]
    assert world.core.table[world.id_of(PROMPT[1])].tenants == (BLUE,)


def test_a_tenant_does_not_part_from_what_its_own_blocks_hang_on() -> None:
    world = World(8, lower_tier=False)
    world.save(PROMPT[:1], tenant=BLUE)
    world.save(PROMPT[:2], tenant=RED)
    held = world.match(PROMPT[:2], tenant=BLUE)
    world.limit(RED, 1)
    assert used(world, RED, BLUE) == [100, 100]
    world.release(held)
    assert sum(used(world, RED, BLUE)) == 200


def test_who_has_no_room_for_its_part_reads_as_a_guest() -> None:
    world = World(8, lower_tier=False)
    world.save(PROMPT, tenant=RED)
    world.limit(BLUE, 1)
    lease = world.match(PROMPT, tenant=BLUE)
    assert len(lease.pinned) == 3
    assert used(world, RED, BLUE) == [200, 100]
    world.release(lease)
    world.limit(BLUE, 0)
    assert used(world, RED, BLUE) == [300, 0]


def test_a_guest_gives_its_own_blocks_to_join() -> None:
    world, own = World(8, lower_tier=False), chain("own", 2)
    world.save(PROMPT, tenant=RED)
    world.limit(BLUE, 2)
    world.save(own, tenant=BLUE)
    assert use(world, BLUE) == 3
    assert used(world, RED, BLUE) == [150, 150]
    assert world.hot(own) == 0


def test_nobody_parts_while_another_has_no_room_for_its_part() -> None:
    """BLUE stands at its limit; RED's part becomes BLUE's only after BLUE has given something of its own. One turn is
    enough: there may be no other."""
    world, own = World(8, lower_tier=False), chain("own", 1)
    world.save(PROMPT[:1], tenant=RED)
    use(world, BLUE, 1)
    world.save(own, tenant=BLUE)
    world.limit(BLUE, 1.5)
    world.limit(RED, 0)
    assert used(world, RED, BLUE) == [0, 100]
    assert world.hot(own) == 0


def test_a_block_that_nobody_has_room_for_leaves() -> None:
    world = World(8)
    world.save(PROMPT[:1], tenant=RED)
    use(world, BLUE, 1)
    world.limit(BLUE, 0.5)
    world.limit(RED, 0.5)
    assert used(world, RED, BLUE) == [50, 50]
    world.limit(RED, 0)
    world.copy_all()
    assert used(world, RED, BLUE) == [0, 0]
    assert world.hot(PROMPT) == 0


def test_a_save_behind_a_shared_prefix_joins_it_first() -> None:
    world = World(8, lower_tier=False)
    world.save(PROMPT[:2], tenant=RED)
    world.limit(BLUE, 2)
    assert world.save(PROMPT, tenant=BLUE) == (1, Shortfall.NONE)
    assert used(world, RED, BLUE) == [100, 200]


def test_a_save_behind_a_prefix_that_its_tenant_has_no_room_for_is_refused() -> None:
    world = World(8, lower_tier=False)
    world.save(PROMPT[:2], tenant=RED)
    world.limit(BLUE, 0.5)
    assert world.save(PROMPT, tenant=BLUE) == (0, Shortfall.QUOTA)
    assert used(world, RED, BLUE) == [150, 50]


def test_a_leaving_block_is_brought_back_for_a_tenant_that_then_shares_it() -> None:
    world = World(8)
    world.save(PROMPT, tenant=RED)
    make_room(world.core, asking=TenantId(""), n_blocks=1)
    world.turn()
    assert use(world, BLUE) == 3
    world.copy_all()
    assert used(world, RED, BLUE) == [150, 150]


def test_each_users_recency_is_its_own() -> None:
    world, other = World(8, lower_tier=False), chain("other", 1)
    world.save(PROMPT[:1], tenant=RED)
    world.save(other, tenant=RED)
    use(world, BLUE, 1)
    assert next(world.victims(RED)) == world.id_of(PROMPT[0])  # BLUE's use does not make it young for RED


@pytest.mark.parametrize("force", [True, False])
def test_an_allocation_says_at_whose_cost_it_was(force: bool) -> None:
    world = World(4, lower_tier=False)
    world.save(chain("red", 3), tenant=RED)
    lease = world.open(chain("blue", 2), tenant=BLUE)
    grant = world.allocate(lease, force=force)
    assert (grant.gave, answer(BLUE, grant.shortfall, grant.gave)) == (
        {RED: 1},
        "granted after reclaiming from red",
    )
    assert (world.core.count(RED).reclaimed, world.core.count(BLUE).caused) == (1, 1)
    world.commit(lease)
    world.release(lease)
    world.limit(BLUE, 2)
    lease = world.open(chain("more", 1), tenant=BLUE)
    grant = world.allocate(lease, force=force)
    assert answer(BLUE, grant.shortfall, grant.gave) == "granted after evicting own"
    world.release(lease)
    lease = world.open(chain("more", 1), tenant=BLUE)
    grant = world.allocate(lease, force=force)
    assert answer(BLUE, grant.shortfall, grant.gave) == "granted"
    world.release(lease)
    world.limit(BLUE, 0)
    lease = world.open(chain("last", 1), tenant=BLUE)
    grant = world.allocate(lease, force=force)
    assert answer(BLUE, grant.shortfall, grant.gave) == "refused: quota"


def test_room_that_comes_by_a_copy_is_still_known_to_have_been_reclaimed() -> None:
    world = World(2)
    world.save(chain("red", 2), tenant=RED)
    lease = world.open(chain("blue", 1), tenant=BLUE)
    assert world.allocate(lease).shortfall is Shortfall.SOON
    world.copy_all()
    assert world.allocate(lease).gave == {RED: 1}
    assert world.core.ledger.total_bytes() == 2 * BLOCK_BYTES


def test_a_tenant_does_not_part_from_a_prefix_to_make_room_for_what_hangs_on_it() -> None:
    """Its part of the first block is all it could give for its part of the second."""
    world = World(8, lower_tier=False)
    world.save(PROMPT, tenant=RED)
    world.limit(BLUE, 0.5)
    use(world, BLUE, 1)
    assert world.save([*PROMPT, *chain("more", 1)], tenant=BLUE) == (0, Shortfall.QUOTA)
    assert used(world, RED, BLUE) == [250, 50]


def test_looking_for_what_is_lent_takes_nothing_from_anybody() -> None:
    """BLUE stands at its limit and would have to give for RED's part; but it is GREEN's own block that leaves."""
    world = World(8, lower_tier=False)
    world.limit(RED, None, hot_reserved_blocks=1)
    world.save(PROMPT[:1], tenant=RED)
    use(world, BLUE, 1)
    world.save(chain("blue", 1), tenant=BLUE)
    world.limit(BLUE, 1.5)
    for index in range(6):
        world.save(chain(f"green {index}", 1), tenant=GREEN)
    for index in range(12):
        world.save(chain(f"more {index}", 1), tenant=GREEN)
    assert world.hot(chain("blue", 1)) == 1
    assert world.hot(PROMPT[:1]) == 1
