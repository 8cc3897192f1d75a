from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tiered.tiers.redis.breaker import Breaker


def opened(*, at: float) -> Breaker:
    breaker = Breaker(3, 10.0)
    for _ in range(3):
        assert breaker.allow(at)
        breaker.failed(at)
    return breaker


def test_it_opens_after_that_many_failures_in_a_row() -> None:
    breaker = Breaker(3, 10.0)
    for outcome in "ffsff":
        assert breaker.allow(0.0)
        if outcome == "f":
            breaker.failed(0.0)
        else:
            breaker.succeeded()
    assert not breaker.is_open
    breaker.failed(0.0)
    assert breaker.is_open
    assert not breaker.allow(9.9)
    assert breaker.opened_total == 1


def test_after_its_time_exactly_one_probe_goes_through() -> None:
    breaker = opened(at=0.0)
    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(lambda _: breaker.allow(10.0), range(64))) == 1
    assert breaker.is_open


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker = opened(at=0.0)
    assert breaker.allow(10.0)
    breaker.succeeded()
    assert not breaker.is_open
    assert breaker.allow(10.0)
    breaker.failed(10.0)
    assert not breaker.is_open  # The run of failures starts anew.


def test_a_probe_that_fails_keeps_it_open_for_another_while() -> None:
    breaker = opened(at=0.0)
    assert breaker.allow(10.0)
    breaker.failed(12.0)
    assert not breaker.allow(21.9)
    assert breaker.allow(22.0)
    assert breaker.opened_total == 1


def test_late_news_of_failure_does_not_keep_it_open_longer() -> None:
    breaker = opened(at=0.0)
    breaker.failed(9.0)
    assert breaker.allow(10.0)
