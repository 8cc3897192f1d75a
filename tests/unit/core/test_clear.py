"""Clearing lets go of what it names, leaves first, and of what is in use when it is no more."""

from __future__ import annotations

from tests.unit.core.builders import BLUE, RED, SCOPE, World, chain
from tiered.core.clear import blocks_of_prefix, blocks_of_scope, blocks_of_tenant, clear


def test_a_tenants_blocks_go_and_nobody_elses() -> None:
    world = World(16)
    world.save(chain("p", 4))
    world.save(chain("q", 3), tenant=BLUE)
    assert clear(world.core, blocks_of_tenant(world.core, RED), tenant=RED) == set()
    world.turn()
    assert (world.hot(chain("p", 4)), world.hot(chain("q", 3))) == (0, 3)
    assert (world.used(RED), world.used(BLUE)) == (0, 3)


def test_of_a_shared_block_the_others_keep_their_part() -> None:
    world = World(16)
    world.save(chain("p", 4))
    world.release(world.match(chain("p", 4), tenant=BLUE))
    assert clear(world.core, blocks_of_tenant(world.core, RED), tenant=RED) == set()
    world.turn()
    assert world.hot(chain("p", 4)) == 4
    assert (world.used(RED), world.used(BLUE)) == (0, 4)


def test_a_prefix_goes_with_all_that_hangs_on_it_and_leaves_what_it_hangs_on() -> None:
    world = World(16)
    hashes = chain("p", 6)
    world.save(hashes)
    assert clear(world.core, blocks_of_prefix(world.core, hashes[2])) == set()
    world.turn()
    assert world.hot(hashes) == 2


def test_what_is_in_use_and_what_it_hangs_on_goes_afterwards() -> None:
    world = World(16)
    hashes = chain("p", 6)
    world.save(hashes)
    lease = world.match(hashes[:3])
    left = clear(world.core, blocks_of_scope(world.core, SCOPE))
    assert left == set(hashes[:3])
    world.turn()
    assert world.hot(hashes) == 3
    world.release(lease)
    assert clear(world.core, left) == set()
    world.turn()
    assert world.hot(hashes) == 0


def test_what_was_saved_after_it_was_asked_stays() -> None:
    world = World(16)
    world.save(chain("p", 2))
    doomed = blocks_of_tenant(world.core, RED)
    world.save(chain("q", 2))
    assert clear(world.core, doomed, tenant=RED) == set()
    world.turn()
    assert (world.hot(chain("p", 2)), world.hot(chain("q", 2))) == (0, 2)


def test_a_scope_that_nobody_uses_is_nothing() -> None:
    world = World(4)
    world.save(chain("p", 2))
    assert blocks_of_scope(world.core, b"\0" * 32) == set()
