"""What each further GiB buys: the ladder, the knee, and that both ways of finding them agree."""

from __future__ import annotations

import pytest

from tests.unit.simulate.builders import random_tree, request
from tiered.simulate.plan import GIB, ladder, plan_by_replays, plan_exactly
from tiered.simulate.replay import Setup
from tiered.simulate.tenants import ONE, by_field


def test_the_ladder_doubles_up_to_what_holds_all() -> None:
    sizes = ladder(1_000, block_bytes=GIB)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024]
    assert ladder(1, block_bytes=3) == [1]
    assert ladder(5, block_bytes=GIB - 1)[-1] >= 5


@pytest.mark.parametrize("seed", range(5))
def test_curves_and_replays_agree_for_one_tenant(seed: int) -> None:
    requests = random_tree(seed, 150)
    sizes = [1, 2, 5, 9, 40]
    exact = plan_exactly(requests, ONE, sizes, block_bytes=GIB)
    replayed = plan_by_replays(requests, Setup("lru", 1), sizes, block_bytes=GIB)
    assert [line.steps for line in exact.lines] == [line.steps for line in replayed.lines]
    assert (exact.exact, replayed.exact) == (True, False)


def test_a_tenants_exact_line_is_what_room_of_its_own_gives() -> None:
    requests = random_tree(1, 200, tenants=3)
    plan = plan_exactly(requests, by_field("who"), [3, 8], block_bytes=GIB)
    assert [line.tenant for line in plan.lines] == ["all", "t0", "t1", "t2"]
    for line in plan.lines[1:]:
        own = [served for served in requests if served.fields["who"] == line.tenant]
        alone = plan_exactly(own, ONE, [3, 8], block_bytes=GIB).lines[0]
        assert line.steps == alone.steps


def test_steps_say_what_they_gain_over_the_one_before() -> None:
    requests = [request(1, 2), request(1, 2)] * 5
    (line,) = plan_exactly(requests, ONE, [1, 2, 4], block_bytes=GIB // 2).lines
    assert [step.hit_ratio for step in line.steps] == [45.0, 90.0, 90.0]
    assert [step.gained for step in line.steps] == [45.0, 45.0, 0.0]
    assert [step.points_per_gib for step in line.steps] == [90.0, 90.0, 0.0]
    assert [step.tokens_saved for step in line.steps] == [9, 18, 18]
    assert (line.knee_blocks, line.knee_bytes, line.best_ratio) == (2, GIB, 90.0)


def test_the_knee_of_a_trace_without_reuse_is_nothing() -> None:
    (line,) = plan_exactly([request(i) for i in range(9)], ONE, [1, 8], block_bytes=1).lines
    assert (line.knee_blocks, line.best_ratio) == (0, 0.0)


def test_redis_below_counts_in_a_replayed_plan() -> None:
    requests = [request(1, 2), request(3, 4)] * 4
    without = plan_by_replays(requests, Setup("lru", 1), [2], block_bytes=1).lines[0].steps[0]
    below = plan_by_replays(requests, Setup("lru", 1, redis_blocks=4), [2], block_bytes=1).lines[0].steps[0]
    assert (without.hit_ratio, below.hit_ratio) == (0.0, 75.0)
