"""How the announcer sends what is due, and that trouble with the directory costs nothing but time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tests.support.redis_server import block_hash
from tiered.clock import ManualClock
from tiered.cluster.announcement import Announcement, Heard
from tiered.cluster.announcing import CHECK_S, RECHECK_S
from tiered.cluster.digest import Digest, digest_of
from tiered.core.core import DirectoryEvents
from tiered.errors import TierTimeout
from tiered.types import BlockHash, Epoch, NodeId
from worker.announce import Announcer

A, B, C = (block_hash(name) for name in "abc")
NODE = NodeId("w1")


class FakeDirectory:
    partitions = 1

    def __init__(self) -> None:
        self.held: set[BlockHash] = set()
        self.said: list[tuple[int, set[BlockHash], set[BlockHash]]] = []
        self.down = False
        self.deaf = False
        """It answers, but for this partition's server."""
        self.digest: Digest | None = None
        """What it has lost; None while it is right."""
        self.read_by: Callable[[], object] = lambda: None
        """What happens while its set is read."""

    def hear(self, node: NodeId, epoch: Epoch, said: Sequence[Announcement]) -> list[Heard | None]:
        self._require_up()
        if self.deaf:
            return [None] * len(said)
        for one in said:
            self.said.append((epoch, set(one.stored), set(one.removed)))
            self.held = (self.held | set(one.stored)) - set(one.removed)
        return [Heard(True, 0)] * len(said)

    def digests(self, node: NodeId, epoch: Epoch) -> list[Digest | None]:
        self._require_up()
        return [self.digest or digest_of(self.held)]

    def members(self, node: NodeId, epoch: Epoch, partition: int) -> set[BlockHash]:
        self._require_up()
        self.read_by()
        return set(self.held)

    def _require_up(self) -> None:
        if self.down:
            raise TierTimeout("silent")


class FakeHot:
    def __init__(self) -> None:
        self.events = DirectoryEvents((), ())

    def drain_events(self) -> DirectoryEvents:
        events, self.events = self.events, DirectoryEvents((), ())
        return events


def make(*resident: BlockHash) -> tuple[Announcer, FakeDirectory, FakeHot, ManualClock]:
    directory, hot, clock = FakeDirectory(), FakeHot(), ManualClock()
    announcer = Announcer(directory, NODE, hot, 0.05, clock)  # type: ignore[arg-type]
    announcer.begin_life(Epoch(1), resident)
    return announcer, directory, hot, clock


def deliver(announcer: Announcer) -> None:
    asyncio.run(announcer.deliver())


def test_what_could_not_be_said_is_said_later_as_it_is_by_then() -> None:
    announcer, directory, hot, _ = make()
    directory.down = True
    hot.events = DirectoryEvents((A, B), ())
    deliver(announcer)
    assert announcer.pending_blocks == 2
    hot.events = DirectoryEvents((C,), (A,))
    deliver(announcer)
    directory.down = False
    deliver(announcer)
    deliver(announcer)
    assert directory.said == [(1, {B, C}, {A})]
    assert announcer.counters().announced_blocks == 3


def test_a_partition_that_does_not_hear_is_not_asked_without_end() -> None:
    announcer, directory, _, _ = make(A)
    directory.deaf = True
    deliver(announcer)
    assert announcer.pending_blocks == 1
    directory.deaf = False
    deliver(announcer)
    assert directory.held == {A}


def test_a_new_life_says_all_that_is_here_and_nothing_of_the_old_one() -> None:
    announcer, directory, hot, _ = make()
    directory.down = True
    hot.events = DirectoryEvents((A,), (B,))
    deliver(announcer)
    hot.events = DirectoryEvents((), (C,))
    announcer.begin_life(Epoch(2), [A])
    directory.down = False
    deliver(announcer)
    assert directory.said == [(2, {A}, set())]


def test_nothing_is_said_once_the_lease_has_ended() -> None:
    announcer, directory, hot, clock = make(A)
    announcer.speaks_until = clock.now() + 5.0
    deliver(announcer)
    clock.advance(5.0)
    hot.events = DirectoryEvents((B,), (A,))
    deliver(announcer)
    assert directory.said == [(1, {A}, set())]
    announcer.speaks_until = clock.now() + 5.0  # a renewal that was on its way
    deliver(announcer)
    assert directory.held == {B}


def test_while_fenced_events_are_taken_and_forgotten() -> None:
    announcer, directory, hot, _ = make(A)
    announcer.fall_silent()
    hot.events = DirectoryEvents((B,), (A,))
    deliver(announcer)
    assert hot.events == DirectoryEvents((), ()), "or they would pile up"
    assert directory.said == []
    assert announcer.pending_blocks == 0


def test_a_difference_that_stands_is_repaired_and_said(caplog: pytest.LogCaptureFixture) -> None:
    announcer, directory, _, clock = make(A, B)
    deliver(announcer)
    directory.held = {B, C}
    clock.advance(CHECK_S)
    deliver(announcer)
    assert directory.held == {B, C}
    clock.advance(RECHECK_S)
    directory.down = True
    deliver(announcer)
    directory.down = False
    clock.advance(CHECK_S)
    deliver(announcer)
    assert directory.held == {A, B}
    assert announcer.counters().repairs == 1
    assert announcer.counters().repaired_blocks == 2
    assert [record.getMessage().count("the directory was wrong") for record in caplog.records] == [1]


def test_nothing_is_said_to_be_wrong_where_only_the_digest_was_or_the_life_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    announcer, directory, _, clock = make(A, B)
    deliver(announcer)
    directory.digest = Digest(7, 7)
    for _ in range(2):
        clock.advance(CHECK_S)
        deliver(announcer)
    assert announcer.counters().repairs == 1
    directory.digest = None
    directory.held = {B, C}
    directory.read_by = announcer.fall_silent
    for _ in range(2):
        clock.advance(CHECK_S)
        deliver(announcer)
    assert announcer.counters().repairs == 1
    assert caplog.records == []
