"""Replay against slow, obviously right models: a list as LRU, exhaustive search as the ceiling."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import pytest

from tiered.core.invariants import check_core
from tiered.simulate.ceiling import min_hits
from tiered.simulate.replay import Fleet, Routing, Setup, WritePolicy, replay
from tiered.simulate.trace import Request
from tiered.types import TenantId


def request(*blocks: int, at: float = 0.0, **fields: object) -> Request:
    return Request(arrival_s=at, blocks=blocks, block_tokens=1, output_tokens=0, fields=dict(fields))


def random_tree(seed: int, n_requests: int, *, branches: int = 3, depth: int = 5) -> list[Request]:
    """Requests that are paths from the root of one random tree of block ids."""
    rng = random.Random(seed)
    ids: dict[tuple[int, ...], int] = {}
    requests = []
    for _ in range(n_requests):
        path = tuple(rng.randrange(branches) for _ in range(rng.randint(1, depth)))
        requests.append(request(*(ids.setdefault(path[: i + 1], len(ids)) for i in range(len(path)))))
    return requests


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
    outcome = replay(requests, Setup("lru", 4, tenant_of=lambda r: TenantId(str(r.fields["who"]))))
    assert sorted(outcome.tenants) == ["0", "1"]
    for field in ("accesses", "hot_hits", "peer_hits", "redis_hits"):
        total = sum(getattr(tally, field) for tally in outcome.tenants.values())
        assert total == getattr(outcome.total, field)


def test_invariants_hold_throughout() -> None:
    fleet = Fleet(Setup("lru", 9, n_workers=2, redis_blocks=20))
    for number, served in enumerate(random_tree(3, 60)):
        fleet.serve(number, served)
        for core in fleet.cores:
            check_core(core)
