"""What the announcer owes the directory, and when it says that it has lost track."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import worker.announce
from tests.support.redis_server import block_hash
from tiered.core.core import DirectoryEvents
from tiered.errors import TierTimeout
from tiered.types import BlockHash, Epoch, NodeId
from worker.announce import Announcer

A, B, C = (block_hash(name) for name in "abc")
NODE = NodeId("w1")


class FakeDirectory:
    def __init__(self) -> None:
        self.said: list[tuple[int, set[BlockHash], set[BlockHash]]] = []
        self.down = False

    def announce(
        self, node: NodeId, epoch: Epoch, *, stored: Sequence[BlockHash], removed: Sequence[BlockHash]
    ) -> None:
        if self.down:
            raise TierTimeout("silent")
        self.said.append((epoch, set(stored), set(removed)))


class FakeHot:
    def __init__(self) -> None:
        self.events = DirectoryEvents((), ())

    def drain_events(self) -> DirectoryEvents:
        events, self.events = self.events, DirectoryEvents((), ())
        return events


def make() -> tuple[Announcer, FakeDirectory, FakeHot]:
    directory, hot = FakeDirectory(), FakeHot()
    announcer = Announcer(directory, NODE, hot, 0.05)  # type: ignore[arg-type]
    announcer.begin_life(Epoch(1), [])
    return announcer, directory, hot


def deliver(announcer: Announcer) -> None:
    asyncio.run(announcer.deliver())


def test_nothing_new_is_nothing_said() -> None:
    announcer, directory, _ = make()
    deliver(announcer)
    assert directory.said == []


def test_what_could_not_be_said_is_said_later_as_it_is_by_then() -> None:
    announcer, directory, hot = make()
    directory.down = True
    hot.events = DirectoryEvents((A, B), ())
    deliver(announcer)
    hot.events = DirectoryEvents((C,), (A,))
    deliver(announcer)
    directory.down = False
    deliver(announcer)
    deliver(announcer)
    assert directory.said == [(1, {B, C}, {A})]


def test_a_new_life_says_all_that_is_here_and_nothing_of_the_old_one() -> None:
    announcer, directory, hot = make()
    directory.down = True
    hot.events = DirectoryEvents((A,), (B,))
    deliver(announcer)
    hot.events = DirectoryEvents((), (C,))
    announcer.begin_life(Epoch(2), [A])
    directory.down = False
    deliver(announcer)
    assert directory.said == [(2, {A}, set())]


def test_too_much_undelivered_is_given_up_for_a_new_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.announce, "PENDING_MAX", 2)
    announcer, directory, hot = make()
    directory.down = True
    hot.events = DirectoryEvents((A, B), ())
    deliver(announcer)
    assert not announcer.lost_track
    hot.events = DirectoryEvents((C,), ())
    deliver(announcer)
    assert announcer.lost_track
    announcer.begin_life(Epoch(2), [A, B, C])
    assert not announcer.lost_track
