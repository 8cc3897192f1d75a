"""Replay against slow, obviously right models: a list as LRU, exhaustive search as the ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest

from tests.unit.simulate.builders import random_tree, request
from tiered.core.invariants import check_core
from tiered.simulate.ceiling import min_hits
from tiered.simulate.outcome import Cause
from tiered.simulate.replay import Fleet, Routing, Setup, WritePolicy, replay
from tiered.simulate.tenants import Bounds, Tenants, by_field
from tiered.simulate.trace import Request
from tiered.tenancy.policy import DEFAULT_TENANT
from tiered.types import TenantId


def naive_lru_hits(requests: Sequence[Request], n_blocks: int) -> int:
    """Oldest first in a list; a request's blocks are touched tail first and stay while it is served."""
    order: list[int] = []
    hits = 0
    for served in requests:
        run = 0
        while run < len(served.blocks) and served.blocks[run] in order:
            run += 1
        hits += run
        kept = list(served.blocks[:n_blocks])
        rest = [block for block in order if block not in kept]
        order = rest[max(0, len(rest) + len(kept) - n_blocks) :] + kept[::-1]
    return hits


@pytest.mark.parametrize("seed", range(25))
def test_lru_replay_equals_a_list(seed: int) -> None:
    requests = random_tree(seed, 120)
    for n_blocks in (1, 3, 7, 20):
        outcome = replay(requests, Setup("lru", n_blocks))
        assert outcome.total.hot_hits == naive_lru_hits(requests, n_blocks), n_blocks


def best_possible_hits(requests: Sequence[Request], n_blocks: int) -> int:
    """Every way of keeping ancestor-closed sets between requests, by brute force."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for served in requests:
        after: dict[frozenset[int], int] = {}
        for kept, hits in best.items():
            run = 0
            while run < len(served.blocks) and served.blocks[run] in kept:
                run += 1
            pool = kept | set(served.blocks)
            for size in range(min(n_blocks, len(pool)) + 1):
                for choice in combinations(sorted(pool), size):
                    candidate = frozenset(choice)
                    after[candidate] = max(after.get(candidate, 0), hits + run)
        best = after
    return max(best.values())


@pytest.mark.parametrize("seed", range(12))
def test_the_ceiling_equals_exhaustive_search(seed: int) -> None:
    requests = random_tree(seed, 7, branches=2, depth=3)
    for n_blocks in (1, 2, 3):
        assert min_hits(requests, n_blocks=n_blocks) == best_possible_hits(requests, n_blocks)


@pytest.mark.parametrize("seed", range(5))
def test_no_replay_beats_the_ceiling(seed: int) -> None:
    requests = random_tree(100 + seed, 200)
    for n_blocks in (2, 5, 11):
        assert replay(requests, Setup("lru", n_blocks)).total.hot_hits <= min_hits(requests, n_blocks=n_blocks)


def test_a_request_longer_than_the_pool_keeps_its_first_blocks() -> None:
    outcome = replay([request(1, 2, 3, 4, 5), request(1, 2, 3, 4, 5)], Setup("lru", 3))
    assert outcome.total.hot_hits == 3


def test_evicted_blocks_are_found_in_redis_and_counted_apart() -> None:
    requests = [request(1, 2), request(3, 4), request(1, 2)]
    without = replay(requests, Setup("lru", 2))
    with_redis = replay(requests, Setup("lru", 2, redis_blocks=10))
    assert without.total.hit_ratio == 0
    assert (with_redis.total.hot_hits, with_redis.total.redis_hits) == (0, 2)
    assert with_redis.redis_writes == 4
    never = replay(requests, Setup("lru", 2, redis_blocks=10, write_policy=WritePolicy.NEVER))
    assert never.total.redis_hits == never.redis_writes == 0


def test_round_robin_finds_blocks_at_peers_and_affinity_finds_them_hot() -> None:
    requests = [request(1, 2, session_id="s") for _ in range(4)]
    spread = replay(requests, Setup("lru", 8, n_workers=2)).total
    assert (spread.hot_hits, spread.peer_hits) == (4, 2)
    kept = replay(requests, Setup("lru", 8, n_workers=2, routing=Routing.AFFINITY)).total
    assert (kept.hot_hits, kept.peer_hits) == (6, 0)


def test_tenants_add_up_to_the_total() -> None:
    requests = [request(i % 3, 10 + i % 5, who=str(i % 2)) for i in range(60)]
    outcome = replay(requests, Setup("lru", 4, tenants=by_field("who")))
    assert sorted(outcome.tenants) == ["0", "1"]
    for field in ("accesses", "hot_hits", "peer_hits", "redis_hits"):
        total = sum(getattr(tally, field) for tally in outcome.tenants.values())
        assert total == getattr(outcome.total, field)


def test_invariants_hold_throughout() -> None:
    tenants = bounded(t0=Bounds(hot_reserved=4, hot_limit=6), t1=Bounds(hot_limit=5, sharing="public"))
    fleet = Fleet(Setup("lru", 9, n_workers=2, redis_blocks=20, tenants=tenants))
    for number, served in enumerate(random_tree(3, 60, tenants=3)):
        fleet.serve(number, served)
        for core in fleet.cores:
            check_core(core)


def bounded(**bounds: Bounds) -> Tenants:
    """Named by the field ``who``; those without bounds here have none and share with nobody."""
    by_name = {TenantId(name): own for name, own in bounds.items()}
    return Tenants(by_field("who").of, {DEFAULT_TENANT: Bounds()} | by_name)


def test_a_block_goes_to_redis_on_reuse_only_if_it_was_used_again() -> None:
    once_and_twice = [request(1, 2), request(1, 2), request(3, 4), request(5, 6)]
    always = replay(once_and_twice, Setup("lru", 2, redis_blocks=10))
    reused = replay(once_and_twice, Setup("lru", 2, redis_blocks=10, write_policy=WritePolicy.ON_REUSE))
    assert (always.redis_writes, reused.redis_writes) == (4, 2)
    back = [*once_and_twice, request(1, 2), request(7, 8), request(1, 2)]
    outcome = replay(back, Setup("lru", 2, redis_blocks=10, write_policy=WritePolicy.ON_REUSE))
    assert (outcome.total.redis_hits, outcome.redis_writes) == (4, 2)


def test_what_came_back_from_redis_was_used_again() -> None:
    requests = [request(1), request(1), request(2), request(1), request(3), request(4)]
    setup = Setup("lru", 1, redis_blocks=1, write_policy=WritePolicy.ON_REUSE)
    # 1 is written when 2 comes, found there, and still there when it leaves again: nothing else was used twice.
    assert replay(requests, setup).redis_writes == 1


def test_moved_blocks_are_those_that_cross_the_network() -> None:
    outcome = replay([request(1, 2), request(3, 4), request(1, 2)], Setup("lru", 2, redis_blocks=10))
    assert outcome.moved_blocks == 4 + 2
    peers = replay([request(1, 2, session_id="s")] * 2, Setup("lru", 8, n_workers=2))
    assert peers.moved_blocks == 2


@pytest.mark.parametrize("seed", range(4))
def test_every_eviction_has_one_cause_and_one_loser(seed: int) -> None:
    tenants = bounded(t0=Bounds(hot_reserved=3), t1=Bounds(hot_limit=4))
    fleet = Fleet(Setup("lru", 10, tenants=tenants))
    for number, served in enumerate(random_tree(seed, 150, tenants=3)):
        fleet.serve(number, served)
    outcome, (core,) = fleet.outcome, fleet.cores
    for tenant, tally in outcome.tenants.items():
        assert sum(tally.evicted.values()) == core.count(tenant).evicted
    for cause in Cause:
        assert outcome.total.evicted[cause] == sum(tally.evicted[cause] for tally in outcome.tenants.values())
    assert outcome.evictions > 0


def test_the_causes_are_told_apart() -> None:
    own = replay([request(1, 2), request(3, 4)], Setup("lru", 2)).total.evicted
    assert own == {Cause.OWN: 2, Cause.LIMIT: 0, Cause.RECLAIMED: 0}
    limited = Setup("lru", 10, tenants=bounded(a=Bounds(hot_limit=2)))
    limit = replay([request(1, 2, who="a"), request(3, 4, who="a")], limited).total.evicted
    assert limit == {Cause.OWN: 0, Cause.LIMIT: 2, Cause.RECLAIMED: 0}
    promised = Setup("lru", 4, tenants=bounded(b=Bounds(hot_reserved=2)))
    outcome = replay([request(1, 2, 3, 4, who="a"), request(5, 6, who="b")], promised)
    assert outcome.tenants[TenantId("a")].evicted == {Cause.OWN: 0, Cause.LIMIT: 0, Cause.RECLAIMED: 2}
    assert outcome.tenants[TenantId("b")].evicted == dict.fromkeys(Cause, 0)


def test_private_tenants_do_not_read_each_others_blocks_and_public_ones_do() -> None:
    requests = [request(1, 2, who="a"), request(1, 2, who="b"), request(1, 2, who="b")]
    assert replay(requests, Setup("lru", 8, tenants=bounded())).total.hot_hits == 2
    public = bounded(a=Bounds(sharing="public"), b=Bounds(sharing="public"))
    assert replay(requests, Setup("lru", 8, tenants=public)).total.hot_hits == 4
    assert replay(requests, Setup("lru", 8, tenants=by_field("who"))).total.hot_hits == 4
    late = [request(1, who="a"), request(1, who="b"), request(2, who="a"), request(2, who="b")]
    assert replay(late, Setup("lru", 8, tenants=bounded())).total.hot_hits == 0


def test_a_reservation_keeps_what_others_would_push_out() -> None:
    flood = [request(10 * i, 10 * i + 1, who=f"b{i % 2}") for i in range(1, 9)]
    requests = [request(1, 2, 3, who="a"), *flood, request(1, 2, 3, who="a")]
    assert replay(requests, Setup("lru", 4, tenants=bounded(a=Bounds(hot_reserved=3)))).total.hot_hits == 3
    assert replay(requests, Setup("lru", 4, tenants=by_field("who"))).total.hot_hits == 1
    assert replay(requests, Setup("lru", 4)).total.hot_hits == 0


def test_times_that_run_backwards_do_no_harm() -> None:
    requests = [request(1, at=5.0), request(1, at=1.0), request(1, at=9.0)]
    assert replay(requests, Setup("lru", 4)).total.hot_hits == 2


def test_a_session_goes_to_the_same_worker_in_every_process() -> None:
    fleet = Fleet(Setup("lru", 8, n_workers=5, routing=Routing.AFFINITY))
    for number, name in enumerate(("alpha", "beta", "gamma")):
        fleet.serve(number, request(number, session_id=name))
    assert [len(core.index) for core in fleet.cores] == [1, 1, 0, 0, 1]
