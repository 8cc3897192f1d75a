"""The two lanes: bounded, in order for each origin, and no origin has all the movers."""

from __future__ import annotations

import threading

from tests.support.redis_server import eventually
from tests.unit.core.builders import REDIS
from tiered.jobs import CopyDone, DemoteJob, FetchDone, FetchJob, Origin, PeerAddress
from tiered.seam.handoff import FetchLimits, Handoff
from tiered.types import BlockHash, BlockId, Source, TenantId, Ticket

MANY = FetchLimits(redis=100, one_peer=100, peers=100)


def peer(n: int) -> Origin:
    return Origin(Source.PEER, PeerAddress(f"w{n}", 1, "127.0.0.1", n))


def fetch(n: int, origin: Origin = REDIS) -> FetchJob:
    return FetchJob(Ticket(n), origin, b"", TenantId("red"), (BlockId(n),), (BlockHash(bytes(32)),))


def demote(n: int) -> DemoteJob:
    return DemoteJob(Ticket(n), BlockId(n), BlockHash(bytes(32)), b"", TenantId("red"), 0, None)


def handing(queue_jobs_max: int = 64, limits: FetchLimits = MANY) -> Handoff:
    return Handoff(queue_jobs_max=queue_jobs_max, notify=lambda: None, limits=limits)


def taken(handoff: Handoff, n: int) -> list[int]:
    """The tickets of the next n fetches, which have to be there to be taken."""
    jobs = [handoff.take_fetch() for _ in range(n)]
    return [job.ticket for job in jobs if job is not None]


def done(n: int) -> FetchDone:
    return FetchDone(Ticket(n), (None,))


def test_a_full_lane_refuses_and_never_blocks() -> None:
    handoff = handing(2)
    jobs = [fetch(1), fetch(2), fetch(3), fetch(4)]
    assert handoff.submit(jobs) == jobs[2:]
    assert handoff.take_fetch() == jobs[0]
    assert handoff.submit(jobs[2:]) == jobs[3:]


def test_a_slow_fetch_does_not_hold_up_copies() -> None:
    handoff = handing(1)
    assert handoff.submit([fetch(1), fetch(2), demote(3), demote(4)]) == [fetch(2), demote(4)]
    assert handoff.take_copy() == demote(3)


def test_jobs_of_an_origin_that_has_its_share_are_passed_over_and_keep_their_order() -> None:
    handoff = handing(limits=FetchLimits(redis=2, one_peer=1, peers=2))
    handoff.submit([fetch(1), fetch(2), fetch(3), fetch(4), fetch(5, peer(1)), fetch(6, peer(1)), fetch(7, peer(2))])
    assert taken(handoff, 4) == [1, 2, 5, 7]
    handoff.finish(done(5))
    assert taken(handoff, 1) == [6]
    handoff.finish(done(2))
    handoff.finish(done(1))
    assert taken(handoff, 2) == [3, 4]


def test_all_peers_together_leave_movers_to_redis() -> None:
    handoff = handing(limits=FetchLimits(redis=2, one_peer=2, peers=3))
    handoff.submit([*(fetch(n, peer(n % 5)) for n in range(10)), fetch(10), fetch(11), fetch(12)])
    assert taken(handoff, 5) == [0, 1, 2, 10, 11]
    handoff.finish(done(1))
    assert taken(handoff, 1) == [3]


def test_another_life_of_a_peer_is_another_origin() -> None:
    first = peer(1)
    assert first.peer is not None
    second = Origin(Source.PEER, PeerAddress("w1", 2, "127.0.0.1", 1))
    handoff = handing(limits=FetchLimits(one_peer=1))
    handoff.submit([fetch(1, first), fetch(2, first), fetch(3, second)])
    assert taken(handoff, 2) == [1, 3]


def test_a_mover_that_waits_is_woken_by_the_end_of_another_fetch() -> None:
    handoff = handing(limits=FetchLimits(redis=1))
    handoff.submit([fetch(1), fetch(2)])
    assert taken(handoff, 1) == [1]
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.extend(taken(handoff, 1)))
    thread.start()
    eventually(lambda: len(handoff._fetchable._waiters) == 1)  # type: ignore[attr-defined]
    assert got == []
    handoff.finish(done(1))
    thread.join(10)
    assert got == [2]


def test_what_ends_without_having_been_taken_frees_nothing() -> None:
    handoff = handing(limits=FetchLimits(redis=1))
    handoff.submit([fetch(1), fetch(2), fetch(3)])
    assert taken(handoff, 1) == [1]
    handoff.finish(done(99))
    handoff.finish(CopyDone(Ticket(1), copied=True))
    handoff.finish(done(1))
    handoff.finish(done(1))
    assert taken(handoff, 1) == [2]
    assert handoff._next_fetch() is None


def test_completions_are_polled_once_in_order_and_each_wakes_the_host() -> None:
    woken: list[int] = []
    handoff = Handoff(queue_jobs_max=1, notify=lambda: woken.append(1))
    completions = [FetchDone(Ticket(1), (None,)), CopyDone(Ticket(2), copied=True)]
    for completion in completions:
        handoff.finish(completion)
    assert handoff.poll() == completions
    assert handoff.poll() == []
    assert len(woken) == 2


def test_a_stop_returns_what_waits_and_ends_every_mover() -> None:
    handoff = handing(4, FetchLimits(redis=1))
    handoff.submit([fetch(1), demote(2), fetch(3)])
    assert handoff.stop() == [fetch(1), fetch(3), demote(2)]
    assert [handoff.take_fetch(), handoff.take_fetch(), handoff.take_copy()] == [None, None, None]


def test_movers_that_wait_end_at_a_stop() -> None:
    handoff = handing()
    threads = [threading.Thread(target=take) for take in [handoff.take_fetch] * 3 + [handoff.take_copy] * 2]
    for thread in threads:
        thread.start()
    handoff.stop()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_nothing_is_taken_after_a_stop() -> None:
    """Nobody would run it, so nobody would answer."""
    handoff = handing(4)
    handoff.stop()
    assert handoff.submit([fetch(1), demote(2)]) == [fetch(1), demote(2)]
