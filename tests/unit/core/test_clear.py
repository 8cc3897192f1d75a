"""Clearing lets go of what it names, leaves first, and of what is in use when it is no more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import tiered.core.clear
from tests.unit.core.builders import BLOCK_BYTES, BLUE, RED, SCOPE, World, chain
from tiered.core.clear import Steps, T, Wanted, clear, of_prefix, of_scope, of_tenant, resident
from tiered.types import BlockHash, TenantId


def all_of(steps: Steps[T], world: World) -> tuple[T, int]:
    """What comes of them, and how many there were; every rule holds after each."""
    n_steps = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, n_steps
        n_steps += 1
        world.turn()


def found(world: World, wanted: Wanted) -> list[BlockHash]:
    return all_of(resident(world.core, wanted), world)[0]


def left_of(world: World, hashes: Sequence[BlockHash], tenant: TenantId | None = None) -> list[BlockHash]:
    return all_of(clear(world.core, hashes, tenant=tenant), world)[0]


def test_a_tenants_blocks_go_and_nobody_elses() -> None:
    world = World(16)
    world.save(chain("p", 4))
    world.save(chain("q", 3), tenant=BLUE)
    assert left_of(world, found(world, of_tenant(RED)), RED) == []
    assert (world.hot(chain("p", 4)), world.hot(chain("q", 3))) == (0, 3)
    assert (world.used(RED), world.used(BLUE)) == (0, 3)


def test_of_a_shared_block_the_others_keep_their_part() -> None:
    world = World(16)
    world.save(chain("p", 4))
    world.release(world.match(chain("p", 4), tenant=BLUE))
    assert left_of(world, found(world, of_tenant(RED)), RED) == []
    assert world.hot(chain("p", 4)) == 4
    assert (world.used(RED), world.used(BLUE)) == (0, 4)


def test_a_prefix_goes_with_all_that_hangs_on_it_and_leaves_what_it_hangs_on() -> None:
    world = World(16)
    hashes = chain("p", 6)
    world.save(hashes)
    assert left_of(world, found(world, of_prefix(world.core, hashes[2]))) == []
    assert world.hot(hashes) == 2


def test_what_is_in_use_and_what_it_hangs_on_goes_afterwards() -> None:
    world = World(16)
    hashes = chain("p", 6)
    world.save(hashes)
    lease = world.match(hashes[:3])
    left = left_of(world, found(world, of_scope(SCOPE)))
    assert left == hashes[:3]
    assert world.hot(hashes) == 3
    world.release(lease)
    assert left_of(world, left) == []
    assert world.hot(hashes) == 0


def test_what_was_saved_after_it_was_asked_stays() -> None:
    world = World(16)
    world.save(chain("p", 2))
    doomed = found(world, of_tenant(RED))
    world.save(chain("q", 2))
    assert left_of(world, doomed, RED) == []
    assert (world.hot(chain("p", 2)), world.hot(chain("q", 2))) == (0, 2)


def test_a_scope_that_nobody_uses_is_nothing() -> None:
    world = World(4)
    world.save(chain("p", 2))
    assert found(world, of_scope(b"\0" * 32)) == []


def test_many_blocks_go_in_steps_that_are_bounded_and_a_parent_never_before_its_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiered.core.clear, "STEP_BLOCKS", 4)
    world, hashes = World(32), chain("p", 14)
    world.save(hashes)
    world.save(chain("q", 6))
    doomed, n_looks = all_of(resident(world.core, of_prefix(world.core, hashes[0])), world)
    assert (doomed, n_looks) == (hashes, 10)
    steps = clear(world.core, doomed)
    for n_left in (10, 6, 2):
        next(steps)
        world.turn()
        assert world.hot(hashes) == n_left
    assert all_of(steps, world)[0] == []
    assert (world.hot(hashes), world.hot(chain("q", 6))) == (0, 6)


def test_what_is_asked_for_between_the_steps_stays_until_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiered.core.clear, "STEP_BLOCKS", 4)
    world, hashes = World(16), chain("p", 12)
    world.save(hashes)
    steps = clear(world.core, found(world, of_tenant(RED)), tenant=RED)
    next(steps)
    lease = world.match(hashes)
    assert len(lease.pinned) == 8
    left, _ = all_of(steps, world)
    assert left == hashes[:8]
    world.release(lease)
    assert left_of(world, left, RED) == []
    assert world.used(RED) == 0


def test_a_tenant_that_is_cleared_presses_no_other_above_its_limit() -> None:
    world, shared, own = World(32, lower_tier=False), chain("p", 8), chain("q", 6)
    world.save(shared)
    world.release(world.match(shared, tenant=BLUE))
    world.save(own, tenant=BLUE)
    world.limit(BLUE, 10)
    assert world.core.ledger.used_bytes(BLUE) == 10 * BLOCK_BYTES
    left = found(world, of_tenant(RED))
    left = left_of(world, left, RED)
    assert not world.core.ledger.excess_bytes(BLUE)
    assert (left, world.used(RED)) == ([], 0)
    assert world.hot(shared) + world.hot(own) == world.used(BLUE) == 10


def test_of_a_shared_block_that_stays_for_another_nobody_parts_as_its_scope_is_cleared() -> None:
    world, shared = World(32, lower_tier=False), chain("p", 8)
    world.save(shared)
    world.release(world.match(shared, tenant=BLUE))
    world.limit(BLUE, 6)
    lease = world.open(chain("p", 9), tenant=BLUE)  # a block that is being filled hangs on the last one
    assert world.allocate(lease).block_ids
    left = left_of(world, found(world, of_scope(SCOPE)))
    assert not world.core.ledger.excess_bytes(BLUE)
    world.commit(lease)
    world.release(lease)
    assert left_of(world, [*left, chain("p", 9)[-1]]) == []
    assert (world.used(RED), world.used(BLUE)) == (0, 0)


def test_a_long_prefix_shared_with_a_full_tenant_is_cleared_in_one_pass() -> None:
    world, shared = World(256, lower_tier=False), chain("p", 64)
    world.save(shared)
    world.release(world.match(shared, tenant=BLUE))
    world.save(chain("q", 40), tenant=BLUE)
    world.limit(BLUE, 72)
    assert left_of(world, found(world, of_tenant(RED)), RED) == []
    assert (world.used(RED), world.used(BLUE)) == (0, 72)
