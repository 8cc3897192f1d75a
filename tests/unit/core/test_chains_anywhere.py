"""Chains that begin in the middle of a prefix: an engine that knows its blocks by name alone may ask for any run.

A hash names all that comes before it, so what is found under it is right wherever it stands; what has to hold is that
every block goes on knowing the block it hangs on, at the depth after it, used by all who use the block.
"""

from __future__ import annotations

import random

import pytest

from tests.unit.core.builders import BLUE, PEER, RED, REDIS, World, chain
from tiered.blocks.record import NO_PARENT
from tiered.core.lease import Lease
from tiered.eviction.registry import POLICIES
from tiered.types import BlockHash

LONG = chain("a", 8)


def test_a_save_from_the_middle_hangs_on_what_comes_before_it() -> None:
    world = World(16)
    world.save(LONG[:5])
    assert world.save([LONG[4], *LONG[5:]])[0] == 3
    record = world.core.table[world.id_of(LONG[5])]
    assert (record.parent, record.depth) == (world.id_of(LONG[4]), 5)
    assert world.hot(LONG) == 8


def test_a_save_whose_beginning_is_not_here_hangs_on_nothing_and_is_found() -> None:
    world = World(16)
    world.save(LONG[5:])
    assert world.core.table[world.id_of(LONG[5])].parent == NO_PARENT
    world.save(LONG)  # what is here stays where it is
    assert world.hot(LONG) == 8
    world.save([*LONG, *chain("b", 2)])
    assert world.hot([*LONG, *chain("b", 2)]) == 10


def test_a_load_from_the_middle_hangs_on_what_comes_before_it() -> None:
    world = World(16)
    world.save(LONG[:5])
    lease = world.match(LONG[4:], below=(REDIS,))
    world.load(lease)
    (fetch,) = world.seam.fetches
    assert fetch.first_depth == 5
    world.answer(fetch)
    assert world.core.table[world.id_of(LONG[7])].depth == 7
    world.release(lease)


def test_who_may_read_anothers_blocks_from_the_middle_on_uses_their_whole_prefix() -> None:
    world = _shared(World(16))
    world.save(LONG, tenant=RED)
    world.release(world.match(LONG[5:], tenant=BLUE))
    assert all(world.core.table[world.id_of(each)].used_by(BLUE) for each in LONG)


def test_blocks_that_hang_on_different_ones_are_shared_each_with_its_own_prefix() -> None:
    world = _shared(World(16))
    world.save(LONG[5:7], tenant=RED)
    world.save(LONG, tenant=RED)  # 0 to 4 hang on nothing, 5 and 6 neither
    world.release(world.match(LONG[3:], tenant=BLUE))
    assert all(world.core.table[world.id_of(each)].used_by(BLUE) for each in LONG)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("is_shared", [False, True])
def test_no_rule_is_broken_by_any_mix_of_runs(policy: str, *, is_shared: bool) -> None:
    rng = random.Random(policy)
    world = World(24, policy=policy)
    if is_shared:
        _shared(world)
    chains = [chain("x", 12), [*chain("x", 6), *chain("y", 8)], chain("z", 10)]
    open_leases: list[Lease] = []
    n_found = 0
    for _ in range(400):
        hashes = rng.choice(chains)
        first = rng.randrange(len(hashes))
        run: list[BlockHash] = hashes[first : rng.randrange(first, len(hashes)) + 1]
        tenant = rng.choice((RED, BLUE)) if is_shared else RED
        match rng.randrange(4):
            case 0:
                world.save(run, tenant=tenant)
            case 1:
                lease = world.match(run, tenant=tenant, below=rng.choice(((), (REDIS,), (PEER, REDIS))))
                n_found += len(lease.pinned)
                world.load(lease)
                for fetch in list(world.seam.fetches):
                    good = fetch.hashes[: rng.randrange(len(fetch.hashes) + 1)]
                    if fetch in world.seam.fetches:
                        world.answer(fetch, good=good)
                while world.seam.fetches:
                    world.answer(world.seam.fetches[0], good=())
                open_leases.append(lease)
            case 2 if open_leases:
                world.release(open_leases.pop(rng.randrange(len(open_leases))))
            case 3 if world.seam.copies:
                world.copy(rng.choice(world.seam.copies), copied=rng.random() < 0.8)
        if len(open_leases) > 3:
            world.release(open_leases.pop(0))
    assert n_found > 0


def _shared(world: World) -> World:
    for tenant in (RED, BLUE):
        world.limit(tenant, None, sharing="group:team")
    return world
