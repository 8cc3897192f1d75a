"""The engines' rate, from reports of any kind."""

from __future__ import annotations

import pytest

from tiered.estimate.prefill import PrefillRate


def test_nothing_is_known_before_the_first_report() -> None:
    assert PrefillRate().tokens_per_s == 0.0


def test_the_first_report_is_taken_as_it_is_and_others_move_it() -> None:
    rate = PrefillRate()
    rate.note(2_000, 2.0)
    assert rate.tokens_per_s == pytest.approx(1_000)
    for _ in range(12):
        rate.note(2_000, 4.0)
    assert rate.tokens_per_s == pytest.approx(500, rel=0.05)


def test_one_report_that_was_held_up_does_not_set_the_rate() -> None:
    rate = PrefillRate()
    for _ in range(5):
        rate.note(2_000, 2.0)
    rate.note(2_000, 500.0)
    assert rate.tokens_per_s > 400


def test_an_engine_that_became_far_slower_is_known_for_it_after_a_few_prompts() -> None:
    rate = PrefillRate()
    for _ in range(5):
        rate.note(4_000, 1.0)
    for _ in range(8):
        rate.note(4_000, 40.0)
    assert rate.tokens_per_s < 200


def test_short_reports_count_for_little() -> None:
    rate = PrefillRate()
    for _ in range(3):
        rate.note(4_000, 4.0)
    for _ in range(3):
        rate.note(64, 0.256)
    assert rate.tokens_per_s == pytest.approx(1_000, rel=0.15)


@pytest.mark.parametrize(
    ("n_tokens", "took_s"),
    [
        (63, 1.0),
        (0, 1.0),
        (-2_000, 1.0),
        (1 << 80, 1.0),
        (2_000, 0.0),
        (2_000, -1.0),
        (2_000, float("nan")),
        (2_000, float("inf")),
        (2_000, 1e-9),
        (2_000, 1e9),
    ],
)
def test_what_cannot_be_a_measurement_is_left_out(n_tokens: int, took_s: float) -> None:
    rate = PrefillRate()
    rate.note(n_tokens, took_s)
    assert rate.tokens_per_s == 0.0
    rate.note(2_000, 2.0)
    rate.note(n_tokens, took_s)
    assert rate.tokens_per_s == pytest.approx(1_000)
