"""promote: single flight, retries, gaps, and leases that end while their blocks are on the way."""

from __future__ import annotations

import pytest

from tests.unit.core.builders import BLUE, PEER, RED, REDIS, World, chain, checksum
from tiered.blocks.state import BlockState
from tiered.core.commit import abort
from tiered.core.promote import FETCH_BLOCKS_MAX, detach
from tiered.core.release import drop_connection, expire
from tiered.types import BlockHash, Source, TenantId

OTHER_ENGINE = 2


def tokens_of(world: World, tenant: TenantId) -> tuple[int, int, int, int, int]:
    tokens = world.core.count(tenant).tokens
    return tokens.asked, tokens.hot, tokens.peer, tokens.redis, tokens.missed


def fetched(world: World) -> list[BlockHash]:
    return [block_hash for job in world.seam.fetches for block_hash in job.hashes]


def test_what_arrives_is_matchable_pinned_and_counted_where_it_came_from() -> None:
    world, prompt = World(8), chain("p", 4)
    world.save(prompt[:1])
    lease = world.match(prompt, below={1: [PEER], 2: [REDIS], 3: [REDIS]})
    op = world.load(lease)
    assert world.hot(prompt) == 1
    for job in list(world.seam.fetches):
        world.answer(job)
    assert op.done
    assert [world.core.table[b].checksum for b in lease.pinned] == [checksum(h) for h in prompt]
    assert lease.sources == [Source.HOT, Source.PEER, Source.REDIS, Source.REDIS]
    world.release(lease, used_tokens=16)
    assert tokens_of(world, RED) == (16, 4, 4, 8, 0)


def test_a_load_with_nowhere_to_ask_is_done_at_once() -> None:
    world = World(4)
    assert world.load(world.match(chain("p", 2))).done


def test_a_long_prefix_is_asked_for_in_jobs_of_bounded_size() -> None:
    world, prompt = World(100), chain("p", 2 * FETCH_BLOCKS_MAX + 1)
    world.load(world.match(prompt, below=[REDIS]))
    assert [len(job.hashes) for job in world.seam.fetches] == [FETCH_BLOCKS_MAX, FETCH_BLOCKS_MAX, 1]
    assert fetched(world) == prompt


def test_two_loads_of_one_prefix_make_one_fetch_and_count_the_same_source() -> None:
    world, prompt = World(8), chain("p", 3)
    first, second = world.match(prompt, below=[PEER]), world.match(prompt, below=[REDIS], connection=OTHER_ENGINE)
    first_op, second_op = world.load(first), world.load(second)
    assert fetched(world) == prompt
    assert not second_op.done
    world.answer(world.seam.fetches[0])
    assert first_op.done
    assert second_op.done
    assert first.pinned == second.pinned
    assert first.sources == second.sources == [Source.PEER] * 3


def test_a_waiting_load_counts_the_origin_that_had_the_block_in_the_end() -> None:
    world, prompt = World(8), chain("p", 2)
    waiting = world.match(prompt, below=[PEER, REDIS])
    fetching = world.match(prompt, below=[PEER, REDIS])
    world.load(fetching)
    world.load(waiting)
    world.answer(world.seam.fetches[0], good=())
    world.answer(world.seam.fetches[0])
    assert fetching.sources == waiting.sources == [Source.REDIS] * 2


def test_the_origin_is_right_for_a_load_that_began_to_wait_first() -> None:
    world, prompt, other = World(2), chain("p", 1), chain("other", 2)
    world.save(other)
    first = world.match(prompt, below=[PEER, REDIS])
    first_op = world.load(first)  # the pool is full: it waits for room
    assert world.seam.fetches == []
    lease = world.match(prompt, below=[PEER, REDIS])
    world.load(lease)
    world.copy_all()
    assert len(world.seam.fetches) == 1
    world.answer(world.seam.fetches[0], good=())
    world.answer(world.seam.fetches[0])
    assert first_op.done
    assert lease.sources == first.sources == [Source.REDIS]


def test_a_load_waiting_for_another_that_fails_asks_its_own_origins() -> None:
    world, prompt = World(8), chain("p", 2)
    first, second = world.match(prompt, below=[PEER]), world.match(prompt, below=[REDIS])
    first_op, second_op = world.load(first), world.load(second)
    world.answer(world.seam.fetches[0], good=())
    assert first_op.done
    assert first.pinned == []
    assert [job.origin for job in world.seam.fetches] == [REDIS]
    world.answer(world.seam.fetches[0])
    assert second_op.done
    assert second.sources == [Source.REDIS] * 2


def test_two_loads_that_share_a_beginning_fetch_it_once() -> None:
    world = World(16)
    shared = chain("p", 2)
    left, right = shared + chain("left", 2, scope=shared[-1]), shared + chain("right", 2, scope=shared[-1])
    ops = [world.load(world.match(prompt, below=[REDIS])) for prompt in (left, right)]
    assert fetched(world) == left
    world.answer(world.seam.fetches[0])
    assert fetched(world) == right[2:]
    world.answer(world.seam.fetches[0])
    assert all(op.done for op in ops)
    assert world.hot(left) == world.hot(right) == 4


def test_what_one_origin_lacks_is_asked_of_the_next() -> None:
    world, prompt = World(8), chain("p", 3)
    lease = world.match(prompt, below=[PEER, REDIS])
    op = world.load(lease)
    world.answer(world.seam.fetches[0], good=[prompt[0], prompt[2]])
    assert world.hot(prompt) == 1
    (retry,) = world.seam.fetches
    assert (retry.origin, list(retry.hashes)) == (REDIS, [prompt[1]])
    world.answer(retry)
    assert op.done
    assert lease.sources == [Source.PEER, Source.REDIS, Source.PEER]


def test_nothing_behind_a_gap_is_kept_or_ever_matchable() -> None:
    world, prompt = World(8), chain("p", 5)
    lease = world.match(prompt, below=[REDIS])
    op = world.load(lease)
    world.answer(world.seam.fetches[0], good=[prompt[0], prompt[1], prompt[3], prompt[4]])
    assert op.done
    assert [world.core.table[b].block_hash for b in lease.pinned] == prompt[:2]
    assert world.hot(prompt) == 2
    assert all(world.core.index.find(h) is None for h in prompt[2:])
    assert world.used(RED) == 2


def test_blocks_behind_the_gap_are_not_asked_of_the_next_origin() -> None:
    world, prompt = World(8), chain("p", 4)
    lease = world.match(prompt, below={0: [PEER], 1: [PEER], 2: [PEER, REDIS], 3: [PEER, REDIS]})
    op = world.load(lease)
    world.answer(world.seam.fetches[0], good=[prompt[0]])
    assert world.seam.fetches == []
    assert op.done
    assert world.hot(prompt) == 1


def test_jobs_that_end_out_of_order_are_committed_in_order() -> None:
    world, prompt = World(100), chain("p", FETCH_BLOCKS_MAX + 2)
    lease = world.match(prompt, below=[REDIS])
    op = world.load(lease)
    first, last = world.seam.fetches
    world.answer(last)
    assert world.hot(prompt) == 0
    world.answer(first)
    assert op.done
    assert world.hot(prompt) == len(lease.pinned) == len(prompt)


def test_a_dropped_lease_keeps_its_slots_until_the_fetch_has_ended() -> None:
    world, prompt = World(4), chain("p", 4)
    world.load(world.match(prompt, below=[REDIS]))
    assert drop_connection(world.core, 1, now=world.now) == 1
    world.turn()
    assert world.core.blocks_in(BlockState.FILLING) == 4
    assert world.save(chain("q", 4), tenant=BLUE) == (0, "full")
    world.answer(world.seam.fetches[0], good=prompt[:2])
    assert world.core.loads == {}
    assert world.hot(prompt) == 2
    assert world.core.blocks_in(BlockState.FREE) == 2


def test_an_expired_lease_ends_its_load_without_further_questions() -> None:
    world, prompt = World(4), chain("p", 4)
    lease = world.match(prompt, below=[PEER, REDIS])
    op = world.load(lease)
    assert expire(world.core, 1e9) == 1
    world.answer(world.seam.fetches[0], good=prompt[:1])
    assert world.seam.fetches == []
    assert op.done
    assert lease.pinned == []
    assert world.hot(prompt) == 1


def test_a_detached_load_ends_with_its_jobs_and_asks_nobody_else() -> None:
    world, prompt = World(8), chain("p", 3)
    lease = world.match(prompt, below=[PEER, REDIS])
    op = world.load(lease)
    detach(world.core, op)
    assert not op.done
    assert world.core.blocks_in(BlockState.FILLING) == 3
    world.answer(world.seam.fetches[0], good=prompt[:1])
    assert op.done
    assert world.seam.fetches == []
    assert world.hot(prompt) == len(lease.pinned) == 1


def test_a_load_detached_while_it_waits_for_another_ends_at_once() -> None:
    world, prompt = World(8), chain("p", 3)
    world.load(world.match(prompt, below=[REDIS]))
    waiting = world.load(world.match(prompt, below=[REDIS]))
    detach(world.core, waiting)
    assert waiting.done


@pytest.mark.parametrize("first_load_detached", [False, True])
def test_a_lease_loaded_twice_holds_each_block_once_and_in_order(first_load_detached: bool) -> None:
    """A second load after a deadline meets the first one's blocks: they may not be pinned as another run."""
    world, prompt = World(8), chain("p", 3)
    lease = world.match(prompt, below=[REDIS])
    first = world.load(lease)
    if first_load_detached:
        detach(world.core, first)
    second = world.load(lease)
    world.answer(world.seam.fetches[0])
    assert first.done
    assert second.done
    assert [world.core.table[b].block_hash for b in lease.pinned] == prompt
    assert len(lease.sources) == 3


def test_blocks_that_became_hot_since_the_match_are_taken_as_hot() -> None:
    world, prompt = World(8), chain("p", 3)
    lease = world.match(prompt, below=[REDIS])
    world.save(prompt[:2])
    op = world.load(lease)
    assert fetched(world) == prompt[2:]
    world.answer(world.seam.fetches[0])
    assert op.done
    assert lease.sources == [Source.HOT, Source.HOT, Source.REDIS]


def test_a_save_in_the_way_ends_the_load_before_it() -> None:
    world, prompt = World(8), chain("p", 3)
    save = world.open(prompt)
    world.allocate(save, n_blocks_max=1)
    lease = world.match(prompt, below=[REDIS])
    assert world.load(lease).done
    assert world.seam.fetches == []
    abort(world.core, save)
    world.turn()
    assert lease.pinned == []


def test_a_load_at_the_tenants_limit_brings_what_fits() -> None:
    world, prompt = World(8), chain("p", 4)
    world.limit(RED, 2)
    lease = world.match(prompt, below=[REDIS])
    op = world.load(lease)
    assert fetched(world) == prompt[:2]
    world.answer(world.seam.fetches[0])
    assert op.done
    assert world.hot(prompt) == 2
    assert world.core.count(RED).refused == 2


def test_a_load_into_a_full_pool_waits_for_room_and_goes_on() -> None:
    world, prompt, old = World(3), chain("p", 3), chain("old", 3)
    world.save(old)
    lease = world.match(prompt, below=[REDIS])
    op = world.load(lease)
    assert not op.done
    for _ in range(10):
        world.copy_all()
        for job in list(world.seam.fetches):
            world.answer(job)
        if op.done:
            break
    assert op.done
    assert world.hot(prompt) == 3


def test_a_load_ends_when_all_of_the_pool_is_in_use() -> None:
    world, prompt, old = World(3), chain("p", 3), chain("old", 3)
    world.save(old)
    world.match(old)
    lease = world.match(prompt, below=[REDIS])
    assert world.load(lease).done
    assert world.seam.fetches == []


def test_a_load_over_a_limit_that_pins_hold_ends_rather_than_wait_for_nothing() -> None:
    world, old = World(8, demote="never"), chain("old", 4)
    world.save(old)
    world.save(chain("idle", 1))
    world.match(old)
    world.core.set_policies({})
    lease = world.match(chain("p", 2), below=[REDIS])
    world.core.set_policies({RED: world.core.ledger.policy(RED).model_copy(update={"hot_limit_bytes": 200})})
    op = world.load(lease)
    assert op.done


def test_refused_fetches_are_misses_at_every_origin() -> None:
    world, prompt = World(8), chain("p", 3)
    world.seam.room = 0
    lease = world.match(prompt, below=[PEER, REDIS])
    op = world.load(lease)
    assert op.done
    assert lease.pinned == []
    assert world.core.blocks_in(BlockState.FREE) == 8


def test_a_stale_or_repeated_answer_changes_nothing() -> None:
    world, prompt = World(8), chain("p", 2)
    lease = world.match(prompt, below=[REDIS])
    world.load(lease)
    job = world.seam.fetches[0]
    world.answer(job)
    world.seam.fetches.append(job)
    world.answer(job, good=())
    assert world.hot(prompt) == len(lease.pinned) == 2
