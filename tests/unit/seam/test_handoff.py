from __future__ import annotations

from tests.unit.core.builders import REDIS
from tiered.jobs import CopyDone, DemoteJob, FetchDone, FetchJob
from tiered.seam.handoff import Handoff
from tiered.types import BlockHash, BlockId, TenantId, Ticket


def fetch(n: int) -> FetchJob:
    return FetchJob(Ticket(n), REDIS, b"", TenantId("red"), (BlockId(n),), (BlockHash(bytes(32)),))


def demote(n: int) -> DemoteJob:
    return DemoteJob(Ticket(n), BlockId(n), BlockHash(bytes(32)), b"", TenantId("red"), 0, None)


def test_a_full_lane_refuses_and_never_blocks() -> None:
    handoff = Handoff(queue_jobs_max=2, notify=lambda: None)
    jobs = [fetch(1), fetch(2), fetch(3), fetch(4)]
    assert handoff.submit(jobs) == jobs[2:]
    assert handoff.take_fetch() == jobs[0]
    assert handoff.submit(jobs[2:]) == jobs[3:]


def test_a_slow_fetch_does_not_hold_up_copies() -> None:
    handoff = Handoff(queue_jobs_max=1, notify=lambda: None)
    assert handoff.submit([fetch(1), fetch(2), demote(3), demote(4)]) == [fetch(2), demote(4)]
    assert handoff.take_copy() == demote(3)


def test_completions_are_polled_once_in_order_and_each_wakes_the_host() -> None:
    woken: list[int] = []
    handoff = Handoff(queue_jobs_max=1, notify=lambda: woken.append(1))
    done = [FetchDone(Ticket(1), (None,)), CopyDone(Ticket(2), copied=True)]
    for completion in done:
        handoff.finish(completion)
    assert handoff.poll() == done
    assert handoff.poll() == []
    assert len(woken) == 2


def test_a_stop_returns_what_waits_and_ends_every_mover() -> None:
    handoff = Handoff(queue_jobs_max=4, notify=lambda: None)
    handoff.submit([fetch(1), demote(2), fetch(3)])
    assert handoff.stop(n_fetchers=2, n_copiers=1) == [fetch(1), fetch(3), demote(2)]
    assert [handoff.take_fetch(), handoff.take_fetch(), handoff.take_copy()] == [None, None, None]


def test_nothing_is_taken_after_a_stop() -> None:
    """Nobody would run it, so nobody would answer."""
    handoff = Handoff(queue_jobs_max=4, notify=lambda: None)
    handoff.stop(n_fetchers=0, n_copiers=0)
    assert handoff.submit([fetch(1), demote(2)]) == [fetch(1), demote(2)]
