"""What is known of sources while fetches come and go, overlap, hang, and end with nothing."""

from __future__ import annotations

from itertools import count

import pytest

from tiered.estimate.sources import BURST_JOBS_MAX, REDIS, SourceKey, Sources
from tiered.types import SourceRate, Ticket

BLOCK = 1_000_000
PEER = SourceKey("w1")
BYTES_PER_S = 1e8


class Rig:
    def __init__(self) -> None:
        self.sources = Sources(BLOCK)
        self.now = 100.0
        self._tickets = count(1)

    def ask(self, n_blocks: int, key: SourceKey = PEER) -> Ticket:
        ticket = Ticket(next(self._tickets))
        self.sources.asked(ticket, key, n_bytes=n_blocks * BLOCK, now=self.now)
        return ticket

    def end(self, ticket: Ticket, n_blocks: int, took_s: float, *, lacks: bool = False) -> None:
        self.sources.finished(ticket, n_bytes=n_blocks * BLOCK, lacks_blocks=lacks, took_s=took_s, now=self.now)

    def fetch(self, n_blocks: int, *, key: SourceKey = PEER, bytes_per_s: float = BYTES_PER_S) -> None:
        ticket, took_s = self.ask(n_blocks, key), 0.001 + n_blocks * BLOCK / bytes_per_s
        self.now += took_s
        self.end(ticket, n_blocks, took_s)

    def healthy(self) -> Rig:
        for n_blocks in (32, 4, 32, 8):
            self.fetch(n_blocks)
        return self

    def seconds(self, n_blocks: int, key: SourceKey = PEER) -> float:
        rate = self.sources.rate(key, now=self.now)
        assert rate.bytes_per_s > 0
        return rate.latency_s + n_blocks * BLOCK / rate.bytes_per_s


def test_a_source_that_nobody_asked_is_unknown_and_idle() -> None:
    rig = Rig()
    assert rig.sources.rate(PEER, now=rig.now) == SourceRate()
    assert rig.sources.busy_s(PEER, now=rig.now) == rig.sources.waiting_s(now=rig.now) == 0.0
    assert rig.sources.peers_rate(now=rig.now) == SourceRate()


def test_fetches_that_run_side_by_side_are_measured_as_one() -> None:
    """Three movers share the source: each of their fetches takes three times as long, and the source is no slower."""
    rig = Rig()
    for _ in range(4):
        tickets = [rig.ask(10) for _ in range(3)]
        rig.now += 0.3
        for ticket in tickets:
            rig.end(ticket, 10, 0.3)
    assert rig.seconds(30) == pytest.approx(0.3, rel=0.05)


def test_a_source_that_is_never_idle_is_measured_all_the_same() -> None:
    rig = Rig()
    ticket = rig.ask(10)
    for _ in range(3 * BURST_JOBS_MAX):
        following = rig.ask(10)
        rig.now += 0.1
        rig.end(ticket, 10, 0.1)
        ticket = following
    assert rig.seconds(10) == pytest.approx(0.1, rel=0.3)


def test_a_clock_that_does_not_move_leaves_what_movers_say() -> None:
    rig = Rig()
    for _ in range(3):
        rig.end(rig.ask(10), 10, 0.1)
    assert rig.seconds(10) == pytest.approx(0.1)


def test_a_clock_that_goes_back_is_survived() -> None:
    rig = Rig().healthy()
    ticket = rig.ask(10)
    rig.now -= 50.0
    assert rig.seconds(10) < 0.2
    rig.end(ticket, 10, 0.1)
    assert rig.seconds(10) < 0.2


@pytest.mark.parametrize("took_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_fetch_that_no_mover_ran_says_nothing(took_s: float) -> None:
    rig = Rig().healthy()
    before = rig.sources.rate(PEER, now=rig.now)
    for _ in range(5):
        rig.end(rig.ask(32), 0, took_s, lacks=True)
    assert rig.sources.rate(PEER, now=rig.now) == before
    assert rig.sources.busy_s(PEER, now=rig.now) == 0.0


def test_what_is_not_there_is_said_quickly_and_does_not_count() -> None:
    rig = Rig().healthy()
    before = rig.sources.rate(PEER, now=rig.now)
    for _ in range(5):
        rig.end(rig.ask(32), 0, 0.002, lacks=True)
    assert rig.sources.rate(PEER, now=rig.now) == before


def test_a_fetch_that_brought_nothing_after_a_long_time_counts_at_once() -> None:
    rig = Rig().healthy()
    ticket = rig.ask(32)
    rig.now += 5.0
    rig.end(ticket, 0, 5.0, lacks=True)
    assert rig.seconds(1) >= 4.5
    assert rig.seconds(32) > 30.0


def test_a_source_first_met_when_it_is_a_crawl_is_known_for_it() -> None:
    rig = Rig()
    ticket = rig.ask(32)
    rig.now += 5.0
    rig.end(ticket, 0, 5.0, lacks=True)
    assert rig.seconds(32) > 30.0


def test_refused_fetches_do_not_make_a_crawl_look_quick() -> None:
    rig = Rig().healthy()
    ticket = rig.ask(32)
    rig.now += 5.0
    rig.end(ticket, 0, 5.0, lacks=True)
    for _ in range(10):
        rig.end(rig.ask(1), 0, 1e-6, lacks=True)
    assert rig.seconds(32) > 30.0


def test_a_crawl_that_recovers_is_used_again_after_one_probe() -> None:
    rig = Rig().healthy()
    ticket = rig.ask(32)
    rig.now += 5.0
    rig.end(ticket, 0, 5.0, lacks=True)
    rig.fetch(1)
    assert rig.seconds(32) < 8 * 0.32


def test_silence_makes_a_source_slower_before_its_fetches_end() -> None:
    rig = Rig().healthy()
    rig.ask(32)
    before = rig.seconds(32)
    rig.now += 3.0
    assert rig.seconds(32) == pytest.approx(3.0, rel=0.05)
    assert before < 0.5


def test_silence_of_a_source_never_measured_counts_too() -> None:
    rig = Rig()
    rig.ask(32)
    assert rig.sources.rate(PEER, now=rig.now) == SourceRate()
    rig.now += 3.0
    assert rig.seconds(32) == pytest.approx(3.0)


def test_a_source_in_doubt_is_far_slower_until_it_brings_something() -> None:
    rig = Rig().healthy()
    before = rig.seconds(32)
    first, second = rig.ask(32), rig.ask(32)
    rig.now += 0.1
    rig.sources.doubt(PEER)
    assert rig.seconds(32) > 50 * before
    rig.now += 0.3
    rig.end(first, 32, 0.4)
    assert rig.seconds(32) < 3 * before
    rig.end(second, 32, 0.4)


def test_doubt_ends_with_what_is_outstanding() -> None:
    rig = Rig().healthy()
    before = rig.seconds(32)
    rig.sources.doubt(PEER)  # nothing is outstanding: nothing to doubt
    rig.sources.doubt(SourceKey("nobody"))
    assert rig.seconds(32) == before
    ticket = rig.ask(32)
    rig.sources.doubt(PEER)
    rig.end(ticket, 0, 0.0, lacks=True)
    assert rig.seconds(32) == before


def test_busy_is_what_is_outstanding_but_what_is_ones_own() -> None:
    rig = Rig().healthy()
    rig.ask(32)
    rig.ask(32, REDIS)
    busy_s = rig.sources.busy_s(PEER, now=rig.now)
    assert busy_s == pytest.approx(0.32, rel=0.1)
    assert rig.sources.busy_s(PEER, now=rig.now, but_bytes=16 * BLOCK) == pytest.approx(busy_s / 2)
    assert rig.sources.busy_s(PEER, now=rig.now, but_bytes=99 * BLOCK) == 0.0
    assert rig.sources.busy_s(REDIS, now=rig.now) == 0.0  # never measured, so nobody can say
    assert rig.sources.waiting_s(now=rig.now) == busy_s


def test_a_source_is_due_when_it_was_tried_long_ago_and_owes_nothing() -> None:
    rig = Rig()
    assert rig.sources.is_due(PEER, now=rig.now, after_s=3.0)
    rig.healthy()
    assert not rig.sources.is_due(PEER, now=rig.now, after_s=3.0)
    rig.now += 3.1
    assert rig.sources.is_due(PEER, now=rig.now, after_s=3.0)
    rig.ask(1)
    assert not rig.sources.is_due(PEER, now=rig.now + 100.0, after_s=3.0)


def test_peers_that_are_gone_are_forgotten_when_they_owe_nothing_and_redis_never_is() -> None:
    rig = Rig().healthy()
    rig.fetch(4, key=REDIS)
    rig.fetch(4, key=SourceKey("w2"))
    ticket = rig.ask(4, SourceKey("w3"))
    rig.sources.keep(["w2"])
    assert len(rig.sources) == 3
    rig.end(ticket, 4, 0.1)
    rig.sources.keep([])
    assert len(rig.sources) == 1
    assert rig.sources.rate(REDIS, now=rig.now).bytes_per_s > 0


def test_a_second_answer_or_one_that_nobody_asked_for_changes_nothing() -> None:
    rig = Rig()
    ticket = rig.ask(4)
    rig.end(ticket, 4, 0.1)
    before = rig.sources.rate(PEER, now=rig.now)
    rig.end(ticket, 4, 9.0)
    rig.end(Ticket(999), 4, 9.0)
    assert rig.sources.rate(PEER, now=rig.now) == before


def test_the_rate_of_any_peer_is_that_of_those_which_are_used() -> None:
    rig = Rig().healthy()
    crawl = SourceKey("crawl")
    ticket = rig.ask(32, crawl)
    rig.now += 5.0
    rig.end(ticket, 1, 5.0, lacks=True)
    rig.fetch(4, key=REDIS, bytes_per_s=1e6)
    rate = rig.sources.peers_rate(now=rig.now)
    assert rate.bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.2)
