"""The one-pass curve against the replay that it stands for, at every size; and what is no curve is refused."""

from __future__ import annotations

import pytest

from tests.unit.simulate.builders import random_tree, request
from tiered.errors import ConfigError
from tiered.simulate.curves import lru_curve
from tiered.simulate.replay import Setup, replay


@pytest.mark.parametrize("seed", range(30))
def test_the_curve_equals_the_lru_replay_at_every_size(seed: int) -> None:
    requests = random_tree(seed, 80, branches=2 + seed % 3, depth=3 + seed % 5)
    unique = len({block for served in requests for block in served.blocks})
    curve = lru_curve(requests)
    for n_blocks in range(1, unique + 2):
        assert curve.hits_at(n_blocks) == replay(requests, Setup("lru", n_blocks)).total.hot_hits, n_blocks


def test_a_request_longer_than_the_pool_hits_with_its_first_blocks() -> None:
    curve = lru_curve([request(1, 2, 3, 4), request(1, 2, 3, 4)])
    assert [curve.hits_at(n) for n in (0, 1, 2, 3, 4, 5, 1_000)] == [0, 1, 2, 3, 4, 4, 4]
    assert curve.ratio_at(4) == 50.0


def test_the_room_for_some_hits_is_the_least_that_gives_them() -> None:
    curve = lru_curve(random_tree(7, 100))
    for hits in (0, 1, 17, 60, curve.hits[-1]):
        n_blocks = curve.room_for(hits)
        assert curve.hits_at(n_blocks) >= hits
        assert n_blocks == 0 or curve.hits_at(n_blocks - 1) < hits
    assert curve.room_for(10**9) == curve.room_for(curve.hits[-1])


def test_nothing_asked_for_twice_is_a_flat_curve() -> None:
    curve = lru_curve([request(1, 2), request(3), request()])
    assert (curve.accesses, curve.hits_at(0), curve.hits_at(100), curve.room_for(0)) == (3, 0, 0, 0)
    assert lru_curve([]).ratio_at(5) == 0.0


@pytest.mark.parametrize(
    "second",
    [request(9, 2), request(2, 1), request(2), request(1, 9, 3), request(1, 3), request(4, 4)],
    ids=["another root", "turned round", "no root", "a gap", "a skip", "twice"],
)
def test_ids_that_are_no_prefixes_are_refused_with_the_request(second: object) -> None:
    with pytest.raises(ConfigError, match="trace: request 2 reaches a block by another way"):
        lru_curve([request(1, 2, 3), second])  # type: ignore[list-item]
