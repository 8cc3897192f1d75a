"""Blocks of an earlier life: which are taken over, for whom, and in which order they would leave again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.unit.core.builders import BLUE, RED, World, chain, checksum
from tests.unit.journal.builders import rows_of
from tiered.blocks.state import BlockState
from tiered.core.adopt import BATCH_BLOCKS, Adoption, adopt
from tiered.core.invariants import check_core
from tiered.eviction.registry import POLICIES
from tiered.journal.rows import JournalRow
from tiered.types import BlockHash, BlockId


def take_over(
    world: World,
    rows: Sequence[JournalRow],
    *,
    corrupt: Sequence[BlockHash] = (),
    in_time: Callable[[], bool] = lambda: True,
) -> Adoption:
    def bring(batch: Sequence[tuple[JournalRow, BlockId]]) -> list[bool]:
        assert 0 < len(batch) <= BATCH_BLOCKS
        for row, block_id in batch:
            assert world.core.table[block_id].state is BlockState.FILLING, "nobody may see it before it is verified"
            assert row.slot is not None
        return [row.block_hash not in corrupt for row, _ in batch]

    done = adopt(world.core, rows, bring, in_time=in_time)
    check_core(world.core)
    return done


def test_what_verifies_is_hot_and_announced_under_its_own_checksum() -> None:
    world = World(8)
    done = take_over(world, [*rows_of("a", 3, hits=2), *rows_of("b", 2, first_slot=3)])
    assert (world.hot(chain("a", 3)), world.hot(chain("b", 2))) == (3, 2)
    assert (len(done.adopted), done.left) == (5, Counter())
    record = world.core.table[world.id_of(chain("a", 3)[2])]
    assert (record.checksum, record.hits, record.pins) == (checksum(chain("a", 3)[2]), 2, 0)
    assert set(world.core.drain_events().stored) == {*chain("a", 3), *chain("b", 2)}


def test_the_rows_it_returns_say_where_the_bytes_are_now() -> None:
    world = World(8)
    done = take_over(world, rows_of("a", 3, first_slot=5, hits=4, touched=9))
    for row in done.adopted:
        assert row.slot == world.id_of(row.block_hash)
        assert (row.hits, row.touched) == (4, 9)


@pytest.mark.parametrize("n_blocks", [1, BATCH_BLOCKS, BATCH_BLOCKS + 1, 3 * BATCH_BLOCKS])
@pytest.mark.parametrize("bad", [0, 1, 63, 64, 65])
def test_behind_a_block_that_does_not_verify_nothing_is_adopted(n_blocks: int, bad: int) -> None:
    world = World(n_blocks + 8)
    hashes = chain("a", n_blocks)
    rows = [*rows_of("a", n_blocks), *rows_of("b", 4, first_slot=n_blocks)]
    done = take_over(world, rows, corrupt=hashes[bad : bad + 1])
    assert world.hot(hashes) == min(bad, n_blocks)
    assert world.hot(chain("b", 4)) == 4
    if bad < n_blocks:
        assert done.left == Counter(corrupt=1, orphan=n_blocks - bad - 1) - Counter()
    assert world.core.blocks_in(BlockState.FILLING) == 0


def test_order_in_the_journal_does_not_matter() -> None:
    world = World(8)
    take_over(world, rows_of("a", 8)[::-1])
    assert world.hot(chain("a", 8)) == 8


def test_rows_without_bytes_or_without_a_parent_are_left() -> None:
    world = World(8)
    a = rows_of("a", 4)
    done = take_over(world, [a[0], a[2], a[3], *rows_of("c", 2, first_slot=None)])
    assert (len(done.adopted), done.left) == (1, Counter(orphan=2))


def test_a_slot_gives_its_bytes_to_one_block_only() -> None:
    world = World(BATCH_BLOCKS + 8)
    [stale] = rows_of("stale", 1, first_slot=3, touched=1)
    done = take_over(world, [*rows_of("a", BATCH_BLOCKS, touched=2), stale])
    assert done.left == Counter(corrupt=1)


def test_a_core_that_holds_something_adopts_nothing() -> None:
    world = World(8)
    world.save(chain("a", 1))
    with pytest.raises(ValueError, match="holds nothing"):
        take_over(world, rows_of("b", 2))


def test_a_depth_that_does_not_fit_its_parent_is_left() -> None:
    world = World(8)
    a = rows_of("a", 3)
    done = take_over(world, [a[0], replace(a[1], depth=2), a[2]])
    assert done.left["orphan"] == 2


def test_a_smaller_pool_keeps_what_was_used_last() -> None:
    world = World(4)
    done = take_over(world, [*rows_of("old", 4, touched=1), *rows_of("new", 3, first_slot=4, touched=2)])
    assert (world.hot(chain("new", 3)), world.hot(chain("old", 4))) == (3, 1)
    assert done.left == Counter(room=1, orphan=2)


def test_too_little_time_costs_what_was_used_first() -> None:
    world = World(400)
    turns = iter([True, True, False])
    rows = [*rows_of("old", BATCH_BLOCKS, touched=1), *rows_of("new", 2 * BATCH_BLOCKS, first_slot=100, touched=2)]
    done = take_over(world, rows, in_time=lambda: next(turns))
    assert world.hot(chain("new", 2 * BATCH_BLOCKS)) == 2 * BATCH_BLOCKS
    assert world.hot(chain("old", BATCH_BLOCKS)) == 0
    assert done.left == Counter(time=BATCH_BLOCKS)


def test_a_tenants_limit_holds_and_others_are_adopted() -> None:
    world = World(16)
    world.limit(RED, 2)
    done = take_over(world, [*rows_of("a", 5), *rows_of("b", 3, first_slot=5, tenants=[BLUE])])
    assert (world.used(RED), world.used(BLUE)) == (2, 3)
    assert world.hot(chain("a", 5)) == 2
    assert done.left == Counter(limit=1, orphan=2)


def test_blocks_that_several_use_are_charged_to_all_of_them_again() -> None:
    world = World(16)
    shared, tail = rows_of("a", 4, tenants=[RED, BLUE]), rows_of("a", 6, tenants=[BLUE])[4:]
    take_over(world, [*shared, *tail])
    assert world.hot(chain("a", 6)) == 6
    assert set(world.core.table[world.id_of(chain("a", 6)[3])].tenants) == {RED, BLUE}
    assert world.core.table[world.id_of(chain("a", 6)[5])].tenants == (BLUE,)


def test_who_has_no_room_for_its_part_is_left_out_and_the_others_keep_the_block() -> None:
    world = World(16)
    world.limit(BLUE, 0)
    shared, tail = rows_of("a", 2, tenants=[RED, BLUE]), rows_of("a", 3, tenants=[BLUE])[2:]
    done = take_over(world, [*shared, *tail])
    assert world.hot(chain("a", 3)) == 2
    assert world.core.table[world.id_of(chain("a", 2)[1])].tenants == (RED,)
    assert done.left == Counter(limit=1)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_can_let_go_of_what_was_adopted(policy: str) -> None:
    world = World(32, policy=policy)
    rows = [*rows_of("a", 10, hits=3, touched=2), *rows_of("b", 10, first_slot=10, touched=1)]
    take_over(world, rows)
    n_stored, _ = world.save(chain("c", 32))
    assert n_stored == 32
    check_core(world.core)


def test_the_oldest_leave_first_and_of_a_prefix_the_deepest() -> None:
    world = World(8)
    take_over(world, [*rows_of("new", 3, touched=5), *rows_of("old", 3, first_slot=3, touched=2)])
    expected = [*reversed(chain("old", 3)), *reversed(chain("new", 3))]
    assert [world.core.table[block_id].block_hash for block_id in world.victims()] == expected


def test_a_prefix_used_by_one_newer_branch_outlives_an_older_one() -> None:
    """Uses of a parent may be lost with a batch; its child's use says that it was used too."""
    world = World(8)
    trunk = rows_of("a", 3, touched=1)
    newer = replace(trunk[2], touched=9)
    take_over(world, [*trunk[:2], newer, *rows_of("b", 2, first_slot=3, touched=5)])
    first_to_leave = [world.core.table[block_id].block_hash for block_id in world.victims()][:2]
    assert first_to_leave == list(reversed(chain("b", 2)))
