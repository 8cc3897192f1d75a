"""The keeper's promise: the last view stays, and says that it is old."""

from __future__ import annotations

import asyncio
import logging
import threading

import msgspec
import pytest

from coordinator.view.keeper import ViewKeeper
from coordinator.view.snapshot import Readings, Trouble
from tests.unit.coordinator.builders import redis_usage
from tiered.clock import ManualClock
from tiered.errors import TierTimeout, TierUnavailable
from tiered.types import TenantId

READINGS = Readings(redis={TenantId("a"): redis_usage(used_bytes=3, blocks=1)})


class Source:
    """A reading that can be made to fail."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __call__(self) -> Readings:
        if self.error is not None:
            raise self.error
        return READINGS


def test_the_last_view_stays_and_turns_stale_when_redis_goes() -> None:
    source, clock = Source(), ManualClock()
    keeper = ViewKeeper(source, clock)
    assert not keeper.refresh().stale
    clock.advance(4.0)
    source.error = TierUnavailable("refused")
    view = keeper.refresh()
    assert view.stale
    assert "refused" in view.reason
    assert view.redis.used_bytes == 3
    assert keeper.age_s() == 4.0


def test_the_view_is_current_again_when_redis_returns() -> None:
    source, clock = Source(), ManualClock()
    keeper = ViewKeeper(source, clock)
    source.error = TierUnavailable("refused")
    assert keeper.refresh().stale
    source.error = None
    clock.advance(1.0)
    view = keeper.refresh()
    assert (view.stale, view.reason) == (False, "")
    assert keeper.age_s() == 0.0


def test_each_trouble_is_logged_once_also_that_of_the_first_reading(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    keeper = ViewKeeper(source, ManualClock())
    found: list[Trouble | None] = []
    for error in (
        TierUnavailable("refused"),
        TierTimeout("late"),
        msgspec.DecodeError("odd"),
        None,
        TierUnavailable("gone"),
    ):
        source.error = error
        found.append(keeper.refresh().trouble)
    silent, odd = Trouble.NO_ANSWER, Trouble.NOT_READABLE
    assert found == [silent, silent, odd, None, silent]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [f"view is stale reason={reason}" for reason in ("refused", "odd", "gone")]


def test_a_bug_while_reading_is_not_taken_for_an_outage() -> None:
    source = Source()
    source.error = AssertionError("bug")
    with pytest.raises(AssertionError, match="bug"):
        ViewKeeper(source, ManualClock()).refresh()


def test_a_refresh_waits_for_the_one_under_way_and_reads_after_it() -> None:
    entered, leave = threading.Event(), threading.Event()
    answers = [Readings(), READINGS]

    def read() -> Readings:
        answer = answers.pop(0)
        if answers:
            entered.set()
            assert leave.wait(10)
        return answer

    keeper = ViewKeeper(read, ManualClock())
    slow = threading.Thread(target=keeper.refresh)
    slow.start()
    assert entered.wait(10)
    later = threading.Thread(target=keeper.refresh)
    later.start()
    leave.set()
    slow.join(10)
    later.join(10)
    assert keeper.view.redis.used_bytes == 3


def test_run_ends_at_the_stop_without_waiting_for_the_interval() -> None:
    reads: list[Readings] = []
    read = threading.Event()

    def source() -> Readings:
        reads.append(READINGS)
        read.set()
        return READINGS

    keeper = ViewKeeper(source, ManualClock())

    async def scenario() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(keeper.run(stop, interval_s=3_600))
        async with asyncio.timeout(10):
            await asyncio.to_thread(read.wait)
            stop.set()
            await task

    asyncio.run(scenario())
    assert reads == [READINGS]
