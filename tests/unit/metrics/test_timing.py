"""Counts per bucket."""

from __future__ import annotations

from tiered.metrics.timing import BUCKETS_S, Timing


def test_a_bucket_has_its_own_bound_in_it() -> None:
    timing = Timing()
    for bound in BUCKETS_S:
        timing.note(bound)
    assert timing.counts == [1] * len(BUCKETS_S) + [0]


def test_what_lies_outside_all_bounds_is_counted_too() -> None:
    timing = Timing()
    timing.note(0.0)
    timing.note(1e9)
    assert (timing.counts[0], timing.counts[-1], timing.n, timing.sum_s) == (1, 1, 2, 1e9)


def test_a_copy_stays_as_it_was() -> None:
    timing = Timing()
    timing.note(0.1)
    copy = timing.copy()
    timing.note(0.1)
    assert (copy.n, timing.n) == (1, 2)


def test_bounds_grow_from_fifty_microseconds_to_ten_seconds() -> None:
    assert sorted(set(BUCKETS_S)) == list(BUCKETS_S)
    assert (BUCKETS_S[0], BUCKETS_S[-1]) == (50e-6, 10.0)
