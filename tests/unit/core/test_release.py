"""release and the books: what was asked for is what was found plus what was missed, whatever an engine says."""

from __future__ import annotations

import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.builders import BLOCK_TOKENS, BLUE, PEER, RED, REDIS, World, chain
from tiered.core.lease import Lease
from tiered.core.lend import lend
from tiered.core.match import match
from tiered.core.release import drop_connection, expire, release
from tiered.core.stats import node_stats
from tiered.errors import OwnershipError
from tiered.types import LeaseId, TokenCounts

HUGE = 1 << 40


def counted(world: World) -> TokenCounts:
    return world.core.count(RED).tokens


def mixed_lease(world: World, asked_tokens: int) -> Lease:
    """One hot block, one from a peer, one from Redis."""
    prompt = chain("p", 3)
    world.save(prompt[:1])
    lease = world.match(prompt, asked_tokens=asked_tokens, below={1: [PEER], 2: [REDIS]})
    world.load(lease)
    for job in list(world.seam.fetches):
        world.answer(job)
    return lease


@given(asked=st.integers(-5, 40), used=st.integers(-HUGE, HUGE))
def test_asked_is_always_what_was_found_and_missed(asked: int, used: int) -> None:
    world = World(8)
    world.release(mixed_lease(world, asked), used_tokens=used)
    tokens = counted(world)
    assert tokens.asked == tokens.hot + tokens.peer + tokens.redis + tokens.missed == max(asked, 0)
    assert tokens.hot + tokens.peer + tokens.redis == min(max(used, 0), 3 * BLOCK_TOKENS, max(asked, 0))
    assert min(tokens.hot, tokens.peer, tokens.redis, tokens.missed) >= 0


@pytest.mark.parametrize(
    ("used", "hot", "peer", "redis"), [(0, 0, 0, 0), (3, 3, 0, 0), (5, 4, 1, 0), (11, 4, 4, 3), (12, 4, 4, 4)]
)
def test_used_tokens_are_counted_from_the_first_block_on(used: int, hot: int, peer: int, redis: int) -> None:
    world = World(8)
    world.release(mixed_lease(world, 12), used_tokens=used)
    assert counted(world) == TokenCounts(asked=12, hot=hot, peer=peer, redis=redis, missed=12 - used)


@given(asked=st.integers(-5, 40), used=st.integers(-HUGE, HUGE), own=st.integers(-HUGE, HUGE))
def test_what_the_engine_had_itself_was_not_asked_for(asked: int, used: int, own: int) -> None:
    world = World(8)
    lease = mixed_lease(world, asked)
    release(world.core, lease, used_tokens=used, own_tokens=own)
    tokens, own = counted(world), min(max(own, 0), max(asked, 0))
    assert tokens.asked == tokens.hot + tokens.peer + tokens.redis + tokens.missed == max(asked, 0) - own
    assert tokens.hot + tokens.peer + tokens.redis == max(0, min(used, 3 * BLOCK_TOKENS, asked) - own)
    assert min(tokens.hot, tokens.peer, tokens.redis, tokens.missed) >= 0


@pytest.mark.parametrize(("own", "hot", "peer", "redis"), [(4, 0, 4, 3), (5, 0, 3, 3), (2, 2, 4, 3), (11, 0, 0, 0)])
def test_blocks_that_the_engine_had_count_for_no_source(own: int, hot: int, peer: int, redis: int) -> None:
    world = World(8)
    release(world.core, mixed_lease(world, 12), used_tokens=11, own_tokens=own)
    assert counted(world) == TokenCounts(asked=12 - own, hot=hot, peer=peer, redis=redis, missed=1)


def test_a_second_release_finds_no_lease() -> None:
    world, prompt = World(4), chain("p", 2)
    world.save(prompt)
    lease = world.match(prompt)
    world.release(lease, used_tokens=8)
    with pytest.raises(OwnershipError):
        world.core.lease(lease.lease_id, connection=1)
    assert counted(world) == TokenCounts(asked=8, hot=8)


def test_a_lease_is_of_one_connection_only() -> None:
    world = World(4)
    lease = world.match(chain("p", 1))
    with pytest.raises(OwnershipError):
        world.core.lease(lease.lease_id, connection=2)
    with pytest.raises(OwnershipError):
        world.core.lease(LeaseId(0), connection=1)


def test_a_connection_that_ends_gives_back_all_its_leases_and_no_others() -> None:
    world, prompt = World(8), chain("p", 2)
    world.save(prompt)
    world.match(prompt)
    world.allocate(world.open(chain("half", 2)))
    other = world.match(prompt, connection=2)
    assert drop_connection(world.core, 1, now=world.now) == 2
    world.turn()
    assert list(world.core.leases) == [other.lease_id]
    assert world.core.filling == {}
    assert counted(world) == TokenCounts(asked=8, missed=8)
    assert drop_connection(world.core, 1, now=world.now) == 0


def test_pins_end_by_themselves_when_their_time_is_over() -> None:
    world, prompt = World(8, match_lease_s=10.0), chain("p", 2)
    world.save(prompt)
    world.match(prompt)
    assert expire(world.core, 9.9) == 0
    assert expire(world.core, 10.0) == 1
    world.turn()
    assert world.core.leases == {}
    assert counted(world) == TokenCounts(asked=8, missed=8)


def test_expiry_never_ends_a_lease_that_is_being_written_under() -> None:
    world, prompt = World(8), chain("p", 2)
    lease = world.match(prompt)
    world.allocate(lease)
    assert expire(world.core, 1e12) == 0
    assert list(world.core.leases) == [lease.lease_id]


def test_a_save_never_expires() -> None:
    world = World(8)
    world.open(chain("p", 2))
    assert expire(world.core, 1e300) == 0


def test_a_peer_is_lent_what_is_here_in_the_right_scope_only() -> None:
    world, prompt = World(8), chain("p", 4)
    world.save(prompt[:3])
    missing = chain("elsewhere", 1)
    asked = [prompt[2], missing[0], prompt[0]]
    lease, indices = lend(world.core, asked, scope_id=world.open(()).scope_id, connection=0, now=0.0, lease_s=5.0)
    assert indices == [0, 2]
    assert [world.core.table[b].block_hash for b in lease.pinned] == [prompt[2], prompt[0]]
    foreign, none = lend(world.core, prompt, scope_id=b"x" * 32, connection=0, now=0.0, lease_s=5.0)
    assert none == foreign.pinned == []
    assert expire(world.core, 5.0) == 2
    world.turn()
    assert world.core.counters.get(BLUE) is None


def test_a_lent_block_does_not_leave() -> None:
    world, prompt = World(1), chain("p", 1)
    world.save(prompt)
    lease, _ = lend(world.core, prompt, scope_id=world.open(()).scope_id, connection=0, now=0.0, lease_s=5.0)
    assert world.save(chain("q", 1)) == (0, "full")
    release(world.core, lease, used_tokens=0)
    assert world.save(chain("q", 1)) == (1, "none")


def test_prefill_is_saved_at_the_rate_measured_when_a_request_ends() -> None:
    world, prompt = World(8), chain("p", 3)
    world.save(prompt)
    world.release(world.match(prompt), used_tokens=8)
    assert world.core.count(RED).saved_s == 0  # nobody has said how fast an engine is
    world.core.prefill.note(1_000, 10.0)
    world.release(world.match(prompt), used_tokens=8)
    assert world.core.count(RED).saved_s == pytest.approx(8 / 100)
    lease = world.match(prompt)
    release(world.core, lease, used_tokens=12, own_tokens=10)
    assert world.core.count(RED).saved_s == pytest.approx(8 / 100 + 2 / 100)
    stats = node_stats(world.core, engines=1, layout="").tenants["red"]
    assert stats.saved_s == world.core.count(RED).saved_s


def test_the_snapshot_adds_up() -> None:
    world = World(8)
    world.save(chain("p", 3), tenant=RED)
    world.save(chain("q", 2), tenant=BLUE)
    world.release(world.match(chain("p", 3)), used_tokens=12)
    stats = node_stats(world.core, engines=2, layout="a layout")
    assert (stats.pool_blocks, stats.free_blocks, stats.engines, stats.layout) == (8, 3, 2, "a layout")
    assert {t: (s.hot_blocks, s.hot_bytes) for t, s in stats.tenants.items()} == {"red": (3, 300), "blue": (2, 200)}
    assert stats.tenants["red"].tokens == TokenCounts(asked=12, hot=12)


def test_a_match_costs_less_than_a_few_microseconds_a_block() -> None:
    """It runs on every request of every engine; the bound is loose, the order of growth is what it guards."""
    n_blocks = 2_000
    world, prompt = World(n_blocks), chain("p", n_blocks)
    world.save(prompt, window=n_blocks)

    def once() -> None:
        lease = match(world.core, prompt, connection=1, tenant=RED, scope_id=b"", asked_tokens=0, now=0.0)
        release(world.core, lease, used_tokens=0)

    assert min(timeit.repeat(once, number=1, repeat=5)) < n_blocks * 20e-6
