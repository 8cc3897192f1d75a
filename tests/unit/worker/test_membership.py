"""What a life of a worker publishes: its own counts, each once, and where the others are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tiered.errors import LeaseExpired, TierUnavailable
from tiered.jobs import PeerAddress
from tiered.types import BlockHash, Epoch, NodeId, NodeInfo, NodeStats, NodeView, TenantId, TenantStats, TokenCounts
from worker.membership import MembershipTask, live_peers, since

RED, BLUE = TenantId("red"), TenantId("blue")


def info(node: str, port: int = 1) -> NodeInfo:
    return NodeInfo(node, "10.0.0.1", port, 2, "/s", 3)


def stats(**asked: int) -> NodeStats:
    return NodeStats(tenants={t: TenantStats(TokenCounts(asked=n, missed=n), hot_blocks=7) for t, n in asked.items()})


class FakeShared:
    """The shared state as one worker sees it; ``trouble`` is what its next renewals end with."""

    def __init__(self) -> None:
        self.epoch = 0
        self.published = NodeStats()
        self.retired: list[NodeStats] = []
        self.trouble: list[Exception] = []
        self.left: list[int] = []

    def join(self, node: NodeInfo, *, lease_ttl_s: float) -> Epoch:
        self.retired.append(self.published)
        self.published = NodeStats()
        self.epoch += 1
        return Epoch(self.epoch)

    def renew(self, node: NodeId, epoch: Epoch, published: NodeStats, *, lease_ttl_s: float) -> None:
        if self.trouble:
            raise self.trouble.pop(0)
        assert epoch == self.epoch
        self.published = published

    def leave(self, node: NodeId, epoch: Epoch) -> None:
        self.left.append(epoch)

    def nodes(self) -> list[NodeView]:
        return []

    def asked(self, tenant: TenantId) -> int:
        return sum(s.tenants[tenant].tokens.asked for s in (*self.retired, self.published) if tenant in s.tenants)


class FakeHot:
    def __init__(self) -> None:
        self.now = NodeStats()
        self.live_peers: Any = {}
        self.peers = self

    def stats(self) -> NodeStats:
        return self.now

    def resident_hashes(self) -> list[BlockHash]:
        return []

    def forget(self, live: object) -> None: ...


@dataclass
class FakeAnnouncer:
    lives: list[int] = field(default_factory=list)
    lost_track: bool = False

    def begin_life(self, epoch: Epoch, resident: list[BlockHash]) -> None:
        self.lives.append(epoch)
        self.lost_track = False


def make_task() -> tuple[MembershipTask, FakeShared, FakeHot, FakeAnnouncer]:
    shared, hot, announcer = FakeShared(), FakeHot(), FakeAnnouncer()
    task = MembershipTask(shared, info("w1"), hot, announcer, lease_ttl_s=5.0, heartbeat_s=1.0)  # type: ignore[arg-type]
    return task, shared, hot, announcer


def test_tokens_count_once_over_the_lives_of_one_process() -> None:
    task, shared, hot, announcer = make_task()

    async def live() -> None:
        await task.join()
        hot.now = stats(red=10)
        await task.beat()
        hot.now = stats(red=15, blue=4)  # five more that the shared state never heard of in this life
        shared.trouble = [LeaseExpired("lapsed")]
        await task.beat()
        await task.beat()
        hot.now = stats(red=16, blue=4)
        await task.leave()

    asyncio.run(live())
    assert announcer.lives == [1, 2]
    assert shared.left == [2]
    assert (shared.asked(RED), shared.asked(BLUE)) == (16, 4)


def test_a_renewal_that_failed_has_published_nothing() -> None:
    task, shared, hot, _ = make_task()

    async def live() -> None:
        await task.join()
        hot.now = stats(red=10)
        shared.trouble = [TierUnavailable("down"), LeaseExpired("lapsed")]
        await task.beat()
        assert not task.connected
        await task.beat()
        await task.beat()

    asyncio.run(live())
    assert task.connected
    assert shared.asked(RED) == 10


def test_lost_announcements_begin_a_new_life() -> None:
    task, _, _, announcer = make_task()

    async def live() -> None:
        await task.join()
        announcer.lost_track = True
        await task.beat()

    asyncio.run(live())
    assert announcer.lives == [1, 2]
    assert task.epoch == 2


def test_leaving_a_shared_state_that_is_gone_is_no_error() -> None:
    task, shared, _, _ = make_task()

    async def live() -> None:
        await task.join()
        for trouble in (TierUnavailable("down"), LeaseExpired("lapsed")):
            shared.trouble = [trouble]
            await task.leave()

    asyncio.run(live())
    assert shared.left == []


def test_only_tokens_are_taken_off_what_earlier_lives_counted() -> None:
    left = since(stats(red=10, blue=3), {RED: TokenCounts(asked=4, missed=4)})
    assert left.tenants[RED].tokens == TokenCounts(asked=6, missed=6)
    assert left.tenants[BLUE].tokens == TokenCounts(asked=3, missed=3)
    assert left.tenants[RED].hot_blocks == 7


def test_peers_are_the_others_whose_lease_runs() -> None:
    def view(node: str, left_s: float) -> NodeView:
        return NodeView(info(node, port=9), Epoch(5), left_s, NodeStats())

    views = [view("w1", 1.0), view("w2", 1.0), view("w3", 0.0)]
    assert live_peers(views, but="w1") == {NodeId("w2"): PeerAddress("w2", Epoch(5), "10.0.0.1", 9)}
