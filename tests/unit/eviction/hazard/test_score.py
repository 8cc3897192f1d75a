"""Learning moves the right way, tells kinds of requests apart, and remembers a bounded number of features."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tiered.eviction.hazard.classes import N_SCORED, N_SCORES, SAID, SHARED, score_class, shared_class
from tiered.eviction.hazard.score import N_LABELS, Score, features_of, rounded_log, turn_bucket
from tiered.eviction.hazard.segment import Segment
from tiered.types import Continues


def segment(**what: object) -> Segment:
    return Segment(number=1, began_at=0.0, used_at=1, length=10, **what)  # type: ignore[arg-type]


def test_a_return_raises_the_rate_and_waiting_lowers_it() -> None:
    score = Score()
    features = score.features(segment())
    before = score.rate(features)
    score.learn(features, expected=0.0, returned=True, size=1.0)
    raised = score.rate(features)
    score.learn(features, expected=0.9, returned=False, size=1.0)
    assert before == 1.0
    assert score.rate(features) < raised > before


def test_a_return_that_was_expected_teaches_nothing() -> None:
    score = Score()
    features = score.features(segment())
    score.learn(features, expected=1.0, returned=True, size=1.0)
    assert score.rate(features) == 1.0


@given(expected=st.floats(0, 1e12), returned=st.booleans(), size=st.floats(0, 1e9), steps=st.integers(1, 50))
def test_no_history_takes_the_rate_out_of_its_bounds(
    expected: float, returned: bool, size: float, steps: int
) -> None:
    score = Score()
    features = score.features(segment())
    for _ in range(steps):
        score.learn(features, expected=expected, returned=returned, size=size)
    assert math.exp(-8.0) <= score.rate(features) <= math.exp(4.0)


def test_requests_of_two_kinds_come_to_differ_as_their_returns_do() -> None:
    score = Score()
    chat, batch = segment(labels=("chat",)), segment(labels=("batch",))
    for _ in range(200):
        score.learn(score.features(chat), expected=0.2, returned=True, size=1.0)
        score.learn(score.features(batch), expected=0.5, returned=False, size=1.0)
    assert score.rate(score.features(chat)) > 3 * score.rate(score.features(batch))


def test_a_word_of_the_caller_is_a_feature_and_silence_is_none() -> None:
    yes, no, silent = (
        features_of(segment(continues=word)) for word in (Continues.YES, Continues.NO, Continues.UNKNOWN)
    )
    assert len(set(yes) - set(no)) == len(set(no) - set(yes)) == 1
    assert set(silent) < set(yes)


def test_labels_without_end_are_told_apart_by_a_bounded_number_of_features() -> None:
    score = Score()
    numbers = {number for i in range(5 * N_LABELS) for number in score.features(segment(labels=(f"request {i}",)))}
    assert len(numbers) <= N_LABELS + len(features_of(segment()))


@given(turn=st.integers(1, 10**9), gap=st.floats(0, 1e18), output=st.none() | st.integers(0, 10**30))
def test_every_request_has_features(turn: int, gap: float, output: int | None) -> None:
    features = features_of(segment(turn=turn, gap_s=gap, mean_gap_s=gap, output_tokens=output))
    assert len(set(features)) == len(features) == len(features_of(segment()))


def test_turns_and_sizes_fall_into_steps() -> None:
    assert [turn_bucket(turn) for turn in (1, 2, 3, 4, 5, 6, 8, 9, 16, 17, 64, 65, 10**6)] == [
        *(1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8)
    ]
    assert [rounded_log(value) for value in (0, 1, 2, 3, 4, 10**30)] == [-1, 0, 1, 1, 2, 40]


@given(rate=st.floats(math.exp(-8), math.exp(4)), word=st.sampled_from(list(SAID)))
def test_each_word_of_the_caller_has_score_classes_of_its_own(rate: float, word: Continues) -> None:
    assert score_class(rate, word) // N_SCORES == SAID[word]
    assert score_class(rate, word) < N_SCORED
    assert score_class(1.0, Continues.UNKNOWN) == N_SCORES // 2


def test_shared_beginnings_fall_into_six_classes() -> None:
    assert [shared_class(n) - SHARED for n in (2, 3, 4, 7, 8, 63, 64, 10**9)] == [0, 0, 1, 1, 2, 4, 5, 5]
