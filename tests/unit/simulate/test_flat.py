"""The replay without the leaf-first rule, against a list that is obviously FIFO or LRU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.simulate.builders import random_tree, request
from tiered.eviction.registry import POLICIES
from tiered.simulate.flat import Order, replay_flat
from tiered.simulate.replay import Setup, replay
from tiered.simulate.tenants import by_field
from tiered.simulate.trace import Request


def naive_hits(requests: Sequence[Request], n_blocks: int, order: Order, *, touches: bool) -> int:
    """A list, next to leave first; touches: a use makes a block the last to leave."""
    queue: list[int] = []
    hits = 0
    for served in requests:
        blocks = list(served.blocks)
        kept, in_use = blocks, set()
        if order is not Order.PLAIN:
            hits += next((i for i, block in enumerate(blocks) if block not in queue), len(blocks))
            kept = blocks[:n_blocks]
            in_use = set(kept)
        for block in kept[::-1] if order is Order.TAIL_FIRST else kept:
            if block in queue:
                hits += order is Order.PLAIN
                if touches:
                    queue.remove(block)
                    queue.append(block)
                continue
            if len(queue) >= n_blocks:
                victim = next((other for other in queue if other not in in_use), None)
                if victim is None:
                    continue
                queue.remove(victim)
            queue.append(block)
    return hits


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize(("policy", "touches"), [("fifo", False), ("lru", True)])
@pytest.mark.parametrize("seed", range(8))
def test_a_flat_replay_equals_a_list(seed: int, policy: str, touches: bool, order: Order) -> None:
    requests = random_tree(seed, 120)
    for n_blocks in (1, 3, 7, 20, 500):
        outcome = replay_flat(requests, POLICIES[policy], n_blocks=n_blocks, order=order)
        assert outcome.total.hot_hits == naive_hits(requests, n_blocks, order, touches=touches), n_blocks


@pytest.mark.parametrize("seed", range(8))
def test_by_recency_the_leaf_first_rule_costs_nothing(seed: int) -> None:
    requests = random_tree(seed, 150)
    for n_blocks in (2, 5, 11):
        flat = replay_flat(requests, POLICIES["lru"], n_blocks=n_blocks).total
        assert flat.hot_hits == replay(requests, Setup("lru", n_blocks)).total.hot_hits


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("cost",)])
def test_every_policy_keeps_all_when_there_is_room_for_all(policy: str) -> None:
    requests = random_tree(3, 100)
    unique = len({block for served in requests for block in served.blocks})
    accesses = sum(len(served.blocks) for served in requests)
    outcome = replay_flat(requests, POLICIES[policy], n_blocks=unique)
    assert outcome.total.hot_hits == accesses - unique


def test_plain_counts_hits_behind_a_hole_and_the_prefix_does_not() -> None:
    requests = [request(1, 2, 3), request(7), request(1, 2, 3)]
    plain = replay_flat(requests, POLICIES["fifo"], n_blocks=3, order=Order.PLAIN).total
    prefix = replay_flat(requests, POLICIES["fifo"], n_blocks=3, order=Order.HEAD_FIRST).total
    assert prefix.hot_hits == 0
    assert plain.hot_hits == 0  # 1 pushes 2 out, 2 pushes 3 out: a loop that is one block too long
    assert replay_flat(requests, POLICIES["fifo"], n_blocks=3).total.hot_hits == 2


def test_tenants_are_counted_apart_and_add_up() -> None:
    requests = random_tree(5, 60, tenants=3)
    outcome = replay_flat(requests, POLICIES["lru"], n_blocks=6, tenant_of=by_field("who").of)
    assert sorted(outcome.tenants) == ["t0", "t1", "t2"]
    assert sum(tally.hot_hits for tally in outcome.tenants.values()) == outcome.total.hot_hits > 0
