"""Latency and bandwidth of one source, from honest, noisy and absurd measurements."""

from __future__ import annotations

import math
import random

import pytest

from tiered.estimate.rate import FetchRate

MIB = 1 << 20


def measured(*sizes: int, latency_s: float = 0.004, bytes_per_s: float = 5e8) -> FetchRate:
    rate = FetchRate()
    for n_bytes in sizes:
        rate.note(n_bytes, latency_s + n_bytes / bytes_per_s)
    return rate


def test_nothing_is_known_of_a_source_that_was_never_measured() -> None:
    assert not FetchRate().known
    assert FetchRate().rate.bytes_per_s == 0


def test_fetches_of_several_sizes_tell_latency_from_bandwidth() -> None:
    rate = measured(MIB, 40 * MIB, 4 * MIB, 10 * MIB).rate
    assert rate.latency_s == pytest.approx(0.004, rel=0.01)
    assert rate.bytes_per_s == pytest.approx(5e8, rel=0.01)


def test_of_fetches_of_one_size_the_time_of_that_size_is_known() -> None:
    rate = measured(8 * MIB, 8 * MIB, 8 * MIB)
    assert rate.expected_s(8 * MIB) == pytest.approx(0.004 + 8 * MIB / 5e8, rel=1e-6)


def test_noise_is_averaged_out() -> None:
    rate, draw = FetchRate(), random.Random(7)
    for _ in range(200):
        n_bytes = draw.choice([1, 4, 16, 64]) * MIB
        rate.note(n_bytes, (0.01 + n_bytes / 1e8) * draw.uniform(0.7, 1.4))
    assert rate.expected_s(32 * MIB) == pytest.approx(0.01 + 32 * MIB / 1e8, rel=0.3)


def test_one_fetch_that_was_held_up_changes_nothing() -> None:
    rate = measured(8 * MIB, 16 * MIB, 8 * MIB)
    before = rate.rate
    rate.note(8 * MIB, 5.0)
    assert rate.rate == before
    rate.note(8 * MIB, 0.02)
    rate.note(8 * MIB, 5.0)
    assert rate.expected_s(8 * MIB) < 0.1


def test_a_source_that_became_a_hundred_times_slower_is_known_for_it_after_two_fetches() -> None:
    rate = measured(8 * MIB, 16 * MIB, 8 * MIB)
    expected_s = rate.expected_s(8 * MIB)
    for _ in range(2):
        rate.note(8 * MIB, 100 * expected_s)
    assert rate.expected_s(8 * MIB) == pytest.approx(100 * expected_s, rel=0.2)


def test_a_fetch_that_was_cut_short_is_believed_at_once() -> None:
    rate = measured(8 * MIB, 16 * MIB, 8 * MIB)
    rate.note(MIB, 5.0, cut_short=True)
    assert rate.expected_s(MIB) == pytest.approx(5.0, rel=0.1)
    assert rate.expected_s(40 * MIB) > 20.0


def test_a_source_that_recovers_is_known_for_it_after_one_small_fetch() -> None:
    rate = measured(8 * MIB, 40 * MIB, 8 * MIB)
    rate.note(MIB, 5.0, cut_short=True)
    rate.note(MIB, 0.006)
    assert rate.expected_s(40 * MIB) < 8 * (0.004 + 40 * MIB / 5e8)


def test_small_fetches_after_a_recovery_do_not_hide_the_bandwidth() -> None:
    rate = measured(8 * MIB, 40 * MIB, 8 * MIB)
    rate.note(MIB, 5.0, cut_short=True)
    for n_bytes in (4 * MIB, MIB, 4 * MIB, MIB, 4 * MIB, MIB):
        rate.note(n_bytes, 0.004 + n_bytes / 5e8)
    assert rate.expected_s(40 * MIB) == pytest.approx(0.004 + 40 * MIB / 5e8, rel=0.5)


def test_a_source_with_more_latency_and_the_same_bandwidth_is_not_shunned_for_its_bandwidth() -> None:
    rate = measured(8 * MIB, 40 * MIB, 8 * MIB)
    for n_bytes in (4 * MIB, MIB) * 6:
        rate.note(n_bytes, 0.3 + n_bytes / 5e8)
    assert rate.expected_s(40 * MIB) < 2.0


@pytest.mark.parametrize("n_bytes", [1, 1 << 50])
@pytest.mark.parametrize("took_s", [1e-9, 1e9, 5e-324])
@pytest.mark.parametrize("cut_short", [False, True])
def test_absurd_measurements_leave_numbers_that_can_be_computed_with(
    n_bytes: int, took_s: float, cut_short: bool
) -> None:
    rate = measured(8 * MIB, 16 * MIB)
    for _ in range(50):
        rate.note(n_bytes, took_s, cut_short=cut_short)
        assert math.isfinite(rate.expected_s(1 << 40))
        assert rate.expected_s(8 * MIB) >= 0
        assert math.isfinite(rate.rate.bytes_per_s)
    for _ in range(20):
        rate.note(8 * MIB, 0.02)
    assert rate.expected_s(8 * MIB) == pytest.approx(0.02, rel=0.5)
