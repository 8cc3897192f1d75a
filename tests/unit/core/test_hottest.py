"""The prefixes used most: found in passes of a few slots, one name for each chain of use."""

from __future__ import annotations

import pytest

from tests.unit.core.builders import BLUE, RED, World, chain
from tiered.core import hottest as searching
from tiered.core.hottest import NAMED_MAX, Hottest
from tiered.types import BlockHash, PrefixUse


def branch(common: list[BlockHash], name: str, n_blocks: int) -> list[BlockHash]:
    return common + chain(name, n_blocks, scope=common[-1])


def use(world: World, hashes: list[BlockHash], times: int) -> None:
    for _ in range(times):
        world.release(world.match(hashes))


def found(world: World, *, slots: int = 7) -> tuple[PrefixUse, ...]:
    hottest = Hottest()
    for _ in range(10_000):
        if hottest.look(world.core, slots):
            return hottest.found
    raise AssertionError("a pass that never ends")


def named(uses: tuple[PrefixUse, ...]) -> list[tuple[str, int, int]]:
    return [(use.block_hash, use.n_blocks, use.hits) for use in uses]


def test_a_system_prompt_is_named_apart_from_what_follows_it() -> None:
    world = World(200)
    system = chain("system", 6)
    talks = [branch(system, f"talk {i}", 4) for i in range(10)]
    for talk in talks:
        world.save(talk)
        use(world, talk, 2)
    uses = found(world)
    assert named(uses)[0] == (system[-1].hex(), 6, 20)
    assert {use.block_hash for use in uses[1:]} == {talk[-1].hex() for talk in talks}
    assert {use.hits for use in uses[1:]} == {2}


def test_each_prefix_says_which_other_one_it_goes_on_from() -> None:
    world = World(200)
    system = chain("system", 6)
    subjects = [branch(system, f"subject {i}", 3) for i in range(3)]
    talks = [branch(subject, f"talk {i}", 4) for subject in subjects for i in range(3)]
    for talk in talks:
        world.save(talk)
        use(world, talk, 1)
    within = {use.block_hash: use.within for use in found(world)}
    assert within[system[-1].hex()] == ""
    assert {within[subject[-1].hex()] for subject in subjects} == {system[-1].hex()}
    for talk in talks:
        assert within[talk[-1].hex()] == talk[8].hex()


def test_of_prefixes_used_about_as_often_on_one_chain_the_one_that_saved_most_is_named() -> None:
    world = World(50)
    hashes = chain("a", 10)
    world.save(hashes)
    for n_blocks in (10, 9, 8, 10, 10):
        use(world, hashes[:n_blocks], 1)
    assert named(found(world)) == [(hashes[7].hex(), 8, 5)]


def test_what_was_never_matched_is_no_prefix_that_is_used() -> None:
    world = World(50)
    world.save(chain("a", 10))
    assert found(world) == ()
    assert found(World(3)) == ()


def test_the_tenant_is_the_one_who_brought_it() -> None:
    world = World(50)
    hashes = chain("a", 2)
    world.save(hashes, tenant=BLUE)
    use(world, hashes, 1)
    assert [use.tenant for use in found(world)] == [BLUE]


def test_no_more_are_named_than_the_bound_and_the_best_of_them() -> None:
    world = World(400)
    for i in range(40):
        hashes = chain(f"p{i}", 3)
        world.save(hashes)
        use(world, hashes, i + 1)
    uses = found(world)
    assert [use.hits for use in uses] == list(range(40, 40 - NAMED_MAX, -1))


def test_blocks_that_left_in_the_middle_of_a_pass_are_not_named() -> None:
    world = World(6)
    gone, here = chain("gone", 6), chain("here", 6)
    world.save(gone)
    use(world, gone, 3)
    hottest = Hottest()
    assert not hottest.look(world.core, 5)
    world.save(here)
    use(world, here, 1)
    assert world.hot(gone) == 0
    hottest.look(world.core, 5)
    assert [use.block_hash for use in hottest.found] in ([here[-1].hex()], [])
    assert [use.block_hash for use in found(world)] == [here[-1].hex()]


def test_a_pass_that_is_cut_anywhere_finds_the_same() -> None:
    world = World(120)
    for i in range(8):
        hashes = branch(chain("common", 3), f"p{i}", i + 1)
        world.save(hashes, tenant=RED)
        use(world, hashes, i % 3 + 1)
    assert len({found(world, slots=slots) for slots in (1, 7, 60, 120, 1_000)}) == 1


def test_very_long_chains_end_the_search_instead_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(400)
    for i in range(3):
        hashes = chain(f"long {i}", 100)
        world.save(hashes)
        use(world, hashes, i + 1)
    assert len(found(world)) == 3
    monkeypatch.setattr(searching, "_STEPS_MAX", 250)
    assert [use.hits for use in found(world)] == [3, 2]
