"""The index is the best rate over all stopping times, worked out here by integrating over fine steps of time."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.eviction.hazard.classes import N_BINS, OLDEST, RUNNING, WIDTHS_S
from tiered.eviction.hazard.index import gittins

STEPS_A_BIN = 400
hazards = st.lists(st.floats(1e-5, 0.5), min_size=N_BINS, max_size=N_BINS)


def best_rate(rates: list[float], begin: int, service_s: float) -> float:
    """The most hits a second of keeping, when one stops at the end of any bin: survival is summed step by step."""
    survival, kept_s, best = 1.0, service_s if begin == RUNNING else 0.0, 0.0
    for age_bin in range(max(begin, 1), N_BINS):
        step = WIDTHS_S[age_bin] / STEPS_A_BIN
        at = [survival * math.exp(-rates[age_bin] * step * i) for i in range(STEPS_A_BIN + 1)]
        if rates[age_bin] * step > 0.2:  # a step as long as a wait: the rest of it is known in closed form
            kept_s += survival / rates[age_bin] * (1.0 - at[-1] / survival)
        else:
            kept_s += sum((a + b) / 2 * step for a, b in pairwise(at))
        survival = at[-1]
        best = max(best, (1.0 - survival) / kept_s)
        if survival < 1e-12:
            break
    return best


@given(rates=hazards, service_s=st.floats(0.0, 100.0))
def test_the_index_is_the_best_rate_over_all_stopping_times(rates: list[float], service_s: float) -> None:
    expected = [best_rate(rates, begin, service_s) for begin in range(N_BINS)]
    assert gittins(rates, service_s=service_s) == pytest.approx(expected, rel=5e-3)


@given(rate=st.floats(1e-6, 10.0))
def test_a_constant_rate_is_its_own_index_at_every_age(rate: float) -> None:
    assert gittins([rate] * N_BINS, service_s=0.0) == pytest.approx([rate] * N_BINS)


@given(rates=hazards, factor=st.floats(1.5, 5.0))
def test_what_returns_more_often_at_every_age_has_the_higher_index(rates: list[float], factor: float) -> None:
    slower, faster = gittins(rates, service_s=3.0), gittins([factor * r for r in rates], service_s=3.0)
    assert all(a < b for a, b in zip(slower, faster, strict=True))


def test_the_index_rises_towards_the_time_of_return_and_falls_behind_it() -> None:
    think_time = [1e-5] * N_BINS
    think_time[8] = 0.05  # 64 to 128 s
    index = gittins(think_time, service_s=5.0)
    assert index[RUNNING] < index[1] < index[4] < index[7] < index[8]
    assert index[9] < index[1] / 10


def test_the_time_that_a_request_runs_lowers_its_index() -> None:
    rates = [0.01] * N_BINS
    assert gittins(rates, service_s=50.0)[RUNNING] < gittins(rates, service_s=1.0)[RUNNING] < 0.01
    assert gittins(rates, service_s=50.0)[1:] == gittins(rates, service_s=1.0)[1:]


def test_rates_as_low_as_they_get_still_rank() -> None:
    index = gittins([1e-9] * N_BINS, service_s=0.0)
    assert all(value > 0 for value in index)
    assert len(index) == OLDEST + 1
