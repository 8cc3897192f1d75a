"""The next token: the likeliest when cold, the same again for a seed, never one outside of the nucleus."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tiered.serving.sampling import Sampler, Sampling

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def drawn(sampling: Sampling, n: int = 400) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.choose(LOGITS) for _ in range(n)]


def test_at_temperature_zero_the_likeliest_is_chosen() -> None:
    assert set(drawn(Sampling(temperature=0.0))) == {0}
    assert set(drawn(Sampling(temperature=1e-9))) == {0}


@pytest.mark.parametrize("seed", [0, 7, -1, (1 << 63) - 1, -(1 << 63)])
def test_a_seed_makes_the_same_choices_again(seed: int) -> None:
    assert drawn(Sampling(seed=seed)) == drawn(Sampling(seed=seed))


def test_without_a_seed_answers_differ() -> None:
    assert drawn(Sampling()) != drawn(Sampling())
    assert drawn(Sampling(seed=1)) != drawn(Sampling(seed=2))


def test_tokens_are_drawn_by_their_odds() -> None:
    counts = Counter(drawn(Sampling(seed=3), 4000))
    for token, odds in enumerate([0.5, 0.3, 0.15, 0.05]):
        assert counts[token] / 4000 == pytest.approx(odds, abs=0.03)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(1e-9, {0}), (0.5, {0}), (0.51, {0, 1}), (0.81, {0, 1, 2}), (1, {0, 1, 2, 3})]
)
def test_the_nucleus_is_the_fewest_tokens_that_reach_top_p(top_p: float, kept: set[int]) -> None:
    assert set(drawn(Sampling(top_p=top_p, seed=1))) == kept


@pytest.mark.parametrize("penalties", [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}])
def test_penalties_hold_against_tokens_of_the_answer_itself(penalties: dict[str, float]) -> None:
    assert drawn(Sampling(temperature=0.0, **penalties), 3) == [0, 1, 2]


def test_a_presence_penalty_counts_once_and_a_frequency_penalty_each_time() -> None:
    presence = Counter(drawn(Sampling(temperature=0.0, presence_penalty=0.1), 50))
    frequency = Counter(drawn(Sampling(temperature=0.0, frequency_penalty=0.1), 50))
    assert set(presence) == {0}
    assert set(frequency) == {0, 1, 2}


def test_logits_are_left_as_they_are() -> None:
    before = LOGITS.clone()
    drawn(Sampling(seed=1, top_p=0.5, presence_penalty=1.0), 5)
    assert torch.equal(LOGITS, before)
