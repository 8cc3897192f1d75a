"""A drain through what befalls it: a lapsed lease, a request that is lost, a shared state that does not answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.support.redis_server import block_hash
from tiered.cluster.drains import DrainRequest
from tiered.errors import TierUnavailable
from tiered.types import NO_EPOCH, NOWHERE, BlockHash, DrainProgress, DrainState, Epoch, NodeId, Owner, Whereabouts
from worker import drain as drain_module
from worker import elsewhere
from worker.drain import DrainTask

W1, W2 = NodeId("w1"), NodeId("w2")
BLOCKS = [block_hash(name) for name in "abc"]


class FakeDrains:
    def __init__(self) -> None:
        self.requests: dict[NodeId, DrainRequest] = {}
        self.trouble: deque[Exception] = deque()

    def all(self) -> dict[NodeId, DrainRequest]:
        if self.trouble:
            raise self.trouble.popleft()
        return dict(self.requests)

    def ask(self, node: NodeId, epoch: Epoch) -> None:
        if self.trouble:
            raise self.trouble.popleft()
        self.requests[node] = DrainRequest(epoch)

    def ended(self, node: NodeId, epoch: Epoch, outcome: DrainProgress) -> None:
        self.requests[node] = DrainRequest(epoch, outcome)

    def asked(self, node: NodeId) -> DrainRequest | None:
        return self.requests.get(node)

    def cancel(self, node: NodeId) -> bool:
        return self.requests.pop(node, None) is not None


class FakeMember:
    def __init__(self) -> None:
        self.epoch = Epoch(1)
        self.parted = False
        self.trouble: deque[Exception] = deque()

    async def look_around(self) -> None:
        if self.trouble:
            raise self.trouble.popleft()

    async def part(self) -> None:
        self.parted = True

    async def come_back(self) -> None:
        self.parted = False


class FakeHot:
    """Three blocks, in no other place but where ``places`` says."""

    def __init__(self) -> None:
        self.draining = False
        self.drain = DrainProgress()
        self.leaving: dict[NodeId, Epoch] = {}
        self.live_peers: dict[NodeId, Any] = {}
        self.places: dict[BlockHash, Whereabouts] = {}
        self.trouble: deque[Exception] = deque()

    def resident_hashes(self) -> list[BlockHash]:
        return list(BLOCKS)

    def by_depth(self, hashes: Iterable[BlockHash]) -> list[BlockHash]:
        return list(hashes)

    async def lookup(self, hashes: Sequence[BlockHash]) -> list[Whereabouts]:
        if self.trouble:
            raise self.trouble.popleft()
        return [self.places.get(each, NOWHERE) for each in hashes]


class Site:
    def __init__(self) -> None:
        self.drains, self.member, self.hot = FakeDrains(), FakeMember(), FakeHot()
        self.task = DrainTask(W1, self.drains, self.hot, self.member)  # type: ignore[arg-type]
        self.room = 3
        """Blocks that Redis still takes."""

    async def copy_down(self, hot: object, hashes: Iterable[BlockHash]) -> None:
        for each in hashes:
            if self.room:
                self.room -= 1
                self.hot.places[each] = Whereabouts(in_redis=True, stored_bytes=1, owners=())


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site()
    monkeypatch.setattr(drain_module, "copy_down", site.copy_down)
    monkeypatch.setattr(drain_module, "POLL_S", 0.001)
    monkeypatch.setattr(elsewhere, "AGAIN_S", 0.001)
    return site


def test_a_drain_goes_on_in_the_life_that_the_same_process_begins_when_its_lease_lapsed(site: Site) -> None:
    site.room = 0

    async def run() -> None:
        site.drains.ask(W1, Epoch(1))
        await site.task.look()
        site.member.epoch = NO_EPOCH
        await site.task.look()
        assert site.hot.draining
        site.member.epoch = Epoch(2)
        site.room = 3
        for _ in range(3):
            await site.task.look()

    asyncio.run(run())
    assert site.hot.draining
    outcome = DrainProgress(state=DrainState.DRAINED, moved_blocks=3)
    assert site.drains.requests == {W1: DrainRequest(2, outcome)}
    assert site.member.parted


def test_a_request_of_another_process_is_taken_away(site: Site) -> None:
    site.member.epoch = Epoch(2)
    site.drains.ask(W1, Epoch(1))
    asyncio.run(site.task.look())
    assert site.drains.requests == {}
    assert not site.hot.draining


def test_a_lookup_that_fails_now_and_then_does_not_begin_the_look_at_all_blocks_anew(site: Site) -> None:
    site.hot.trouble.extend([TierUnavailable("late")] * (elsewhere.TRIES - 1))
    site.drains.ask(W1, Epoch(1))
    asyncio.run(site.task.look())
    assert site.hot.drain.left_blocks == 3
    assert not site.hot.trouble


def test_a_drain_that_cannot_go_on_says_so_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        site.drains.ask(W1, Epoch(1))
        await site.task.look()
        site.drains.trouble.extend([TierUnavailable("down")] * 3)
        for _ in range(3):
            await site.task.look()

    asyncio.run(run())
    assert caplog.text.count("the drain waits for the shared state") == 1


def test_a_stop_tries_again_when_the_shared_state_does_not_answer_and_says_so(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.drains.trouble.extend([TierUnavailable("down")] * 4)
    site.member.trouble.append(TierUnavailable("down"))
    asyncio.run(site.task.empty(timeout_s=10.0))
    assert all(where.in_redis for where in site.hot.places.values())
    assert len(site.hot.places) == len(BLOCKS)
    assert site.member.parted
    assert caplog.text.count("the drain waits for the shared state") == 1


async def stop(site: Site) -> None:
    await site.task.empty(timeout_s=10.0)
    await site.task.withdraw()


def test_of_a_drain_that_a_stop_asked_for_nothing_is_left(site: Site) -> None:
    asyncio.run(stop(site))
    assert site.drains.requests == {}
    assert site.member.parted


def test_what_came_of_a_drain_that_was_asked_for_is_told_after_a_stop_too(site: Site) -> None:
    async def run() -> None:
        site.room = 0
        site.drains.ask(W1, Epoch(1))
        await site.task.look()
        site.room = 3
        await stop(site)

    asyncio.run(run())
    assert site.drains.requests == {W1: DrainRequest(1, DrainProgress(state=DrainState.DRAINED, moved_blocks=3))}


def test_a_stop_whose_time_is_over_does_not_guess_what_is_left(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.member.trouble.extend([TierUnavailable("down")] * 10_000)
    asyncio.run(site.task.empty(timeout_s=0.05))
    assert "stopped before all was moved node=w1 left=unknown" in caplog.text


def test_of_two_nodes_that_stop_at_once_neither_trusts_the_other(site: Site) -> None:
    class Peer:
        epoch = Epoch(7)

    site.hot.live_peers = {W2: Peer()}
    held = Whereabouts(in_redis=False, stored_bytes=0, owners=(Owner(W2, Epoch(7)),))
    site.hot.places = dict.fromkeys(BLOCKS, held)
    site.drains.ask(W2, Epoch(7))  # by a stop of its own
    asyncio.run(site.task.empty(timeout_s=10.0))
    assert all(where.in_redis for where in site.hot.places.values())
