"""Warming up takes what is free, and nothing from anybody."""

from __future__ import annotations

from tests.unit.core.builders import BLUE, RED, REDIS, SCOPE, World, chain
from tiered.core.invariants import check_core
from tiered.core.lease import Lease
from tiered.core.promote import FETCH_BLOCKS_MAX
from tiered.core.warm import open_warm, spare_slots, wanted
from tiered.types import BlockHash, TenantId


def warm(world: World, hashes: list[BlockHash], below: list[BlockHash], *, tenant: TenantId = RED) -> Lease | None:
    lease = open_warm(
        world.core,
        hashes,
        below,
        [(REDIS,)] * len(below),
        tenant=tenant,
        scope_id=SCOPE,
        connection=-1,
        expires_at=10.0,
    )
    check_core(world.core)
    return lease


def test_the_blocks_after_the_hot_ones_are_wanted_one_job_at_a_time() -> None:
    world = World(100)
    hashes = chain("a", 60)
    world.save(hashes[:3])
    assert list(wanted(world.core, hashes, tenant=RED)) == hashes[3 : 3 + FETCH_BLOCKS_MAX]


def test_what_is_kept_free_for_others_is_not_spare() -> None:
    world = World(10, free_target_blocks=4)
    world.save(chain("a", 3))
    assert spare_slots(world.core) == 3
    assert len(wanted(world.core, chain("b", 9), tenant=BLUE)) == 3


def test_a_tenants_limit_bounds_what_is_wanted_for_it() -> None:
    world = World(20)
    world.limit(RED, 5)
    world.save(chain("a", 3))
    assert len(wanted(world.core, chain("b", 9), tenant=RED)) == 2
    assert len(wanted(world.core, chain("b", 9), tenant=BLUE)) == 9


def test_a_full_pool_is_left_alone() -> None:
    world = World(4)
    world.save(chain("a", 4))
    assert list(wanted(world.core, chain("b", 2), tenant=RED)) == []
    assert spare_slots(world.core) == 0


def test_what_is_loaded_is_hot_and_held_by_nobody() -> None:
    world = World(10)
    hashes = chain("a", 4)
    world.save(hashes[:1])
    lease = warm(world, hashes, hashes[1:])
    assert lease is not None
    world.load(lease)
    world.answer(world.seam.fetches[0])
    world.release(lease)
    assert world.hot(hashes) == 4
    assert world.core.leases == {}
    assert world.core.counters.get(RED) is None or world.core.counters[RED].tokens.asked == 0


def test_it_is_given_up_when_the_room_went_to_an_engine_meanwhile() -> None:
    world = World(6)
    hashes = chain("a", 4)
    below = list(wanted(world.core, hashes, tenant=RED))
    world.save(chain("engine", 4))
    assert warm(world, hashes, below) is None
    assert world.core.leases == {}


def test_it_is_given_up_when_an_engine_was_quicker() -> None:
    world = World(10)
    hashes = chain("a", 4)
    below = list(wanted(world.core, hashes, tenant=RED))
    world.save(hashes[:2])
    assert warm(world, hashes, below) is None
