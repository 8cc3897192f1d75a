"""Which blocks of a prompt are where, in runs and in sums."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.view.coverage import NODES_PER_RUN_MAX, RUNS_MAX, Coverage, CoverageRun, cover

A, B, GONE, REDIS = 2, 4, 8, 1
NODES = {A: "a", B: "b"}


def test_neighbours_at_the_same_places_are_one_run() -> None:
    assert cover([A | B, A | B, A | REDIS | GONE, A | REDIS, 0, GONE, REDIS], NODES) == Coverage(
        hot_blocks=4,
        redis_blocks=3,
        nowhere_blocks=2,
        covered_blocks=4,
        runs=(
            CoverageRun(0, 2, ("a", "b"), 2, in_redis=False),
            CoverageRun(2, 2, ("a",), 1, in_redis=True),
            CoverageRun(4, 2, (), 0, in_redis=False),
            CoverageRun(6, 1, (), 0, in_redis=True),
        ),
        n_runs=4,
    )


def test_no_blocks_are_nowhere_at_all() -> None:
    assert cover([], NODES) == Coverage(0, 0, 0, 0, (), 0)


def test_what_is_listed_is_bounded_and_what_there_is_is_said() -> None:
    nodes = {2 << i: f"n{i:03}" for i in range(100)}
    found = cover([sum(nodes), 0] * RUNS_MAX, nodes)
    assert (len(found.runs), found.n_runs) == (RUNS_MAX, 2 * RUNS_MAX)
    assert (len(found.runs[0].nodes), found.runs[0].n_nodes) == (NODES_PER_RUN_MAX, 100)
    assert found.nowhere_blocks == RUNS_MAX


@given(st.lists(st.integers(0, 15), max_size=40))
def test_runs_say_of_every_block_what_its_bits_say(masks: list[int]) -> None:
    found = cover(masks, NODES)
    spread = [(run.nodes, run.in_redis) for run in found.runs for _ in range(run.n_blocks)]
    assert spread == [(tuple(NODES[bit] for bit in NODES if mask & bit), bool(mask & REDIS)) for mask in masks]
    assert [run.first_block for run in found.runs] == [
        sum(run.n_blocks for run in found.runs[:i]) for i in range(len(found.runs))
    ]
    assert found.hot_blocks == sum(bool(mask & (A | B)) for mask in masks)
    assert found.redis_blocks == sum(mask & REDIS for mask in masks)
    assert found.nowhere_blocks == sum(not mask & (A | B | REDIS) for mask in masks)
    assert found.covered_blocks == next((i for i, mask in enumerate(masks) if not mask & (A | B | REDIS)), len(masks))
