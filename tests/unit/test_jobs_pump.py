"""pump: one turn of the seam, with a queue that has room and with one that has not."""

from __future__ import annotations

import pytest

from tests.unit.core.builders import PEER, RED, REDIS, World, chain
from tiered.blocks.state import BlockState
from tiered.core.allocate import Shortfall
from tiered.core.pump import take
from tiered.jobs import FetchDone
from tiered.types import Ticket


def test_a_turn_applies_what_has_finished_and_submits_what_follows() -> None:
    world, prompt = World(8), chain("p", 2)
    lease = world.match(prompt, below=[PEER, REDIS])
    op = world.load(lease)
    world.answer(world.seam.fetches[0], good=prompt[:1])
    assert [job.origin for job in world.seam.fetches] == [REDIS]
    assert not op.done
    world.answer(world.seam.fetches[0])
    assert op.done


def test_a_completion_nobody_asked_for_is_dropped() -> None:
    world = World(2)
    world.seam.done.append(FetchDone(Ticket(999), (b"c" * 16,)))
    world.turn()
    assert world.core.blocks_in(BlockState.FREE) == 2


def test_a_turn_with_nothing_to_do_submits_nothing() -> None:
    world = World(2)
    world.turn()
    assert world.seam.n_submitted == 0


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_full_queue_costs_copies_and_fetches_but_no_turn_hangs(room: int) -> None:
    world, prompt = World(4), chain("p", 4)
    world.save(chain("old", 4))
    world.seam.room = room
    op = world.load(world.match(prompt, below=[PEER, REDIS]))
    for _ in range(20):
        world.copy_all()
        for job in list(world.seam.fetches):
            world.answer(job)
    assert op.done
    assert world.core.loads == {}


def test_the_part_of_a_prefix_that_the_queue_took_still_counts() -> None:
    world, prompt = World(100), chain("p", 64)
    world.seam.room = 1
    op = world.load(world.match(prompt, below=[REDIS]))
    world.answer(world.seam.fetches[0])
    assert op.done
    assert world.hot(prompt) == 32


def test_room_that_a_full_queue_makes_at_once_is_used_at_once() -> None:
    """Refused copies free their blocks without a completion: nobody would wake a host that waits for one."""
    world, prompt = World(4), chain("p", 2)
    for name in range(4):
        world.save(chain(f"old{name}", 1))
    world.seam.room = 0
    grant = take(world.core, world.seam, world.open(prompt), n_blocks_max=2, force=False)
    assert (len(grant.block_ids), grant.shortfall) == (2, Shortfall.NONE)


def test_soon_is_answered_while_copies_are_under_way() -> None:
    world, prompt = World(4), chain("p", 2)
    world.save(chain("old", 4))
    lease = world.open(prompt)
    assert take(world.core, world.seam, lease, n_blocks_max=2, force=False).shortfall is Shortfall.SOON
    assert len(world.seam.copies) == 1
    world.copy_all()
    assert len(take(world.core, world.seam, lease, n_blocks_max=2, force=False).block_ids) == 1


def test_a_lowered_limit_is_reached_in_one_turn_where_no_copy_can_be_made() -> None:
    world = World(8, leaving_max=1)
    world.save(chain("p", 6))
    world.seam.room = 0
    world.limit(RED, 2)
    assert world.used(RED) == 2
