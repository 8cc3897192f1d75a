"""From counts to a curve of few points: cliffs stay cliffs, and what sampling got wrong is put right."""

from __future__ import annotations

import math
import random

import pytest

from tiered.curve.histogram import POINTS_MAX, Histogram, hits_at


def drawn(places: list[int], *, n_missed: int = 0) -> Histogram:
    histogram = Histogram()
    histogram.looked = len(places) + n_missed
    for place in places:
        histogram.add([(place, 1)], n_sampled=1, per=1.0)
    histogram.counted += n_missed
    return histogram


@pytest.mark.parametrize("seed", range(10))
def test_few_points_say_what_many_counts_did(seed: int) -> None:
    rng = random.Random(seed)
    places = [round(math.exp(rng.uniform(0, 9))) for _ in range(3_000)]
    points = drawn(places, n_missed=1_000).points(n_sampled=10**12)
    assert 2 <= len(points) <= POINTS_MAX
    assert list(points) == sorted(points)
    for size in (1, 3, 10, 100, 500, 1_000, 5_000, 10**9):
        true = sum(place <= size for place in places)
        assert hits_at(points, size) == pytest.approx(true, abs=0.05 * len(places))
    assert hits_at(points, 10**9) == pytest.approx(len(places))


def test_a_cliff_stays_as_steep_as_a_bucket_is_wide() -> None:
    points = drawn([1_000] * 500 + [3] * 10).points(n_sampled=10**12)
    assert hits_at(points, 900) == pytest.approx(10)
    assert hits_at(points, 1_100) == pytest.approx(510)


def test_the_first_place_needs_room_for_one_block() -> None:
    points = drawn([1] * 10).points(n_sampled=10**12)
    assert (hits_at(points, 0), hits_at(points, 0.5), hits_at(points, 1)) == (0.0, 5.0, 10.0)


def test_a_hot_block_that_the_sample_lacks_is_put_at_the_first_place() -> None:
    histogram = drawn([1_000, 2_000])
    histogram.looked += 98
    points = histogram.points(n_sampled=10**12)
    assert hits_at(points, 1) == pytest.approx(98)
    assert hits_at(points, 10_000) == pytest.approx(100)


def test_a_hot_block_that_the_sample_counts_for_too_many_is_taken_off_there() -> None:
    histogram = drawn([4] * 90 + [50] * 20 + [2_000] * 10)
    histogram.looked = 20
    points = histogram.points(n_sampled=10**12)
    assert hits_at(points, 100) == pytest.approx(10)
    assert hits_at(points, 10**6) == pytest.approx(20)


def test_a_difference_that_chance_alone_would_give_is_spread_over_all_places() -> None:
    histogram = drawn([1_000] * 50, n_missed=50)
    histogram.looked = 104
    assert hits_at(histogram.points(n_sampled=100), 10_000) == pytest.approx(52)
    assert hits_at(histogram.points(n_sampled=100), 500) == 0


def test_hits_never_exceed_lookups_however_wrong_the_sample_is() -> None:
    histogram = drawn([4] * 1_000)
    histogram.looked = 0
    assert hits_at(histogram.points(n_sampled=10**12), 10**9) == 0


def test_nothing_found_is_an_empty_curve_and_reads_as_nothing() -> None:
    histogram = drawn([], n_missed=100)
    histogram.looked += 5
    assert list(histogram.points(n_sampled=10**12)) == []
    assert hits_at((), 10**12) == 0.0


def test_fading_leaves_the_shape() -> None:
    histogram = drawn([3] * 60 + [500] * 40)
    histogram.fade(0.25)
    assert histogram.looked == 25
    assert hits_at(histogram.points(n_sampled=10**12), 10) == pytest.approx(15)
    histogram.fade(1e-12)
    assert list(histogram.points(n_sampled=10**12)) == []


def test_huge_places_are_counted_like_others() -> None:
    histogram = Histogram()
    histogram.looked = 2.0**60
    histogram.add([(1_000, 3)], n_sampled=3, per=2.0**50)
    assert hits_at(histogram.points(n_sampled=10**12), 2**70) > 0
