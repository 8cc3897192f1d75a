"""What a life of a worker publishes: its own counts, each once, and where the others are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from tiered.clock import ManualClock
from tiered.errors import LeaseExpired, StaleEpoch, TierUnavailable
from tiered.jobs import PeerAddress
from tiered.types import (
    NO_EPOCH,
    BlockHash,
    Epoch,
    NodeId,
    NodeInfo,
    NodeStats,
    NodeTraffic,
    NodeView,
    TenantId,
    TenantStats,
    TokenCounts,
)
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
        self.down = False
        self.left: list[int] = []
        self.views: list[NodeView] = []

    def join(self, node: NodeInfo, *, lease_ttl_s: float) -> Epoch:
        if self.down:
            raise TierUnavailable("down")
        self.retired.append(self.published)
        self.published = NodeStats()
        self.epoch += 1
        return Epoch(self.epoch)

    def renew(self, node: NodeId, epoch: Epoch, published: NodeStats, *, lease_ttl_s: float) -> None:
        if self.down:
            raise TierUnavailable("down")
        if self.trouble:
            raise self.trouble.pop(0)
        assert epoch == self.epoch
        self.published = published

    def leave(self, node: NodeId, epoch: Epoch) -> None:
        self.left.append(epoch)

    def lives(self) -> list[NodeView]:
        if self.down:
            raise TierUnavailable("down")
        return self.views

    def asked(self, tenant: TenantId) -> int:
        return sum(s.tenants[tenant].tokens.asked for s in (*self.retired, self.published) if tenant in s.tenants)


class FakeHot:
    def __init__(self) -> None:
        self.now = NodeStats()
        self.live_peers: Any = {}
        self.peers = self
        self.leaving: Any = {}

    def stats(self) -> NodeStats:
        return self.now

    def resident_hashes(self) -> list[BlockHash]:
        return []

    def forget(self, live: object) -> None: ...


@dataclass
class FakeAnnouncer:
    lives: list[int] = field(default_factory=list)
    speaks: bool = False
    speaks_until: float = 0.0

    def begin_life(self, epoch: Epoch, resident: list[BlockHash]) -> None:
        self.lives.append(epoch)
        self.speaks = True

    def fall_silent(self) -> None:
        self.speaks = False


CLOCK = ManualClock()


def make_task() -> tuple[MembershipTask, FakeShared, FakeHot, FakeAnnouncer]:
    shared, hot, announcer = FakeShared(), FakeHot(), FakeAnnouncer()
    task = MembershipTask(shared, info("w1"), hot, announcer, lease_ttl_s=5.0, heartbeat_s=1.0, clock=CLOCK)  # type: ignore[arg-type]
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


def test_a_lease_that_could_not_be_renewed_in_time_fences_this_node_whatever_redis_knows() -> None:
    task, shared, _, announcer = make_task()

    async def live() -> None:
        await task.join()
        CLOCK.advance(1.0)
        await task.beat()
        assert announcer.speaks_until == CLOCK.now() + 5.0
        shared.down = True
        for _ in range(4):
            CLOCK.advance(1.0)
            await task.beat()
            assert (task.epoch, announcer.speaks) == (1, True), "its lease still runs"
        CLOCK.advance(1.0)
        assert task.epoch == NO_EPOCH, "even before it has noticed"
        await task.beat()
        assert not announcer.speaks
        shared.down = False
        await task.beat()
        assert (task.epoch, announcer.speaks, task.connected) == (2, True, True)

    asyncio.run(live())
    assert announcer.lives == [1, 2]


def test_a_lease_counts_from_before_the_renewal_was_sent() -> None:
    task, shared, _, _ = make_task()
    renew = shared.renew

    def slow(*args: Any, **kwargs: Any) -> None:
        CLOCK.advance(3.0)
        renew(*args, **kwargs)

    async def live() -> None:
        await task.join()
        shared.renew = slow  # type: ignore[method-assign]
        await task.beat()
        CLOCK.advance(1.9)
        assert task.epoch == 1
        CLOCK.advance(0.2)
        assert task.epoch == NO_EPOCH

    asyncio.run(live())


def test_a_name_that_another_process_took_is_not_fought_for(caplog: pytest.LogCaptureFixture) -> None:
    task, shared, _, announcer = make_task()
    other = NodeView(msgspec.structs.replace(info("w1"), instance="another"), Epoch(9), 3.0, NodeStats())

    async def live() -> None:
        await task.join()
        shared.trouble = [StaleEpoch(seen=1, current=9)]
        shared.views = [other]
        for _ in range(10):
            await task.beat()
        said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(said) == 1
        assert "another worker took this node's name" in said[0]
        assert "10.0.0.1:1" in said[0]
        assert (task.epoch, announcer.speaks) == (NO_EPOCH, False)
        assert task.connected
        await task.leave()
        assert shared.left == [], "it would end the other's life"
        shared.views = [lapsed(other)]
        await task.beat()

    asyncio.run(live())
    assert announcer.lives == [1, 2]
    assert announcer.speaks


def test_a_join_whose_answer_was_lost_is_no_other_process() -> None:
    task, shared, _, announcer = make_task()

    async def live() -> None:
        await task.join()
        shared.trouble = [StaleEpoch(seen=1, current=2)]
        shared.views = [NodeView(task.info, Epoch(2), 3.0, NodeStats())]
        await task.beat()

    asyncio.run(live())
    assert announcer.lives == [1, 2]


@pytest.mark.parametrize("gone", ["lapsed", "left"])
def test_who_comes_back_after_a_long_pause_takes_a_name_that_is_free(gone: str) -> None:
    task, shared, _, announcer = make_task()
    shared.views = [lapsed(NodeView(info("w1", port=7), Epoch(9), 3.0, NodeStats()))] if gone == "lapsed" else []

    async def live() -> None:
        await task.join()
        CLOCK.advance(60.0)
        await task.beat()

    asyncio.run(live())
    assert announcer.lives == [1, 2]


def lapsed(view: NodeView) -> NodeView:
    return NodeView(view.info, view.epoch, 0.0, view.stats)


def test_a_node_that_leaves_is_fenced_before_the_shared_state_hears_of_it() -> None:
    task, shared, _, announcer = make_task()
    seen: list[tuple[int, float]] = []

    def leave(node: NodeId, epoch: Epoch) -> None:
        seen.append((task.epoch, announcer.speaks_until))
        raise TierUnavailable("heard, but the answer was lost")

    async def run() -> None:
        await task.join()
        assert task.epoch != NO_EPOCH
        shared.leave = leave  # type: ignore[method-assign]
        await task.leave()

    asyncio.run(run())
    assert seen == [(NO_EPOCH, 0.0)]
    assert task.epoch == NO_EPOCH


def parts_meanwhile(task: MembershipTask, shared: FakeShared, call: str, trouble: Sequence[Exception] = ()) -> None:
    """A beat, during whose call of this name the node leaves for good. trouble: of calls from the beat on."""
    begun, go_on = threading.Event(), threading.Event()
    made = getattr(shared, call)

    def slow(*args: Any, **kwargs: Any) -> Any:
        setattr(shared, call, made)
        begun.set()
        assert go_on.wait(10)
        return made(*args, **kwargs)

    async def run() -> None:
        await task.join()
        shared.trouble = list(trouble)
        setattr(shared, call, slow)
        beat = asyncio.create_task(task.beat())
        await asyncio.to_thread(begun.wait, 10)
        await task.part()
        go_on.set()
        await beat
        await task.beat()

    asyncio.run(run())


def test_a_renewal_that_was_on_its_way_does_not_revive_a_node_that_has_left() -> None:
    task, shared, _, announcer = make_task()
    parts_meanwhile(task, shared, "renew")
    assert (task.epoch, announcer.speaks_until) == (NO_EPOCH, 0.0)


def test_a_renewal_that_is_refused_after_the_node_has_left_makes_it_no_member_again() -> None:
    task, shared, _, _ = make_task()
    parts_meanwhile(task, shared, "renew", [TierUnavailable("of the last words"), LeaseExpired("it has left")])
    assert (shared.epoch, task.epoch) == (1, NO_EPOCH)


def test_a_node_that_leaves_while_it_joins_again_is_no_member_afterwards() -> None:
    task, shared, _, announcer = make_task()
    parts_meanwhile(task, shared, "join", [LeaseExpired("lapsed"), LeaseExpired("lapsed")])
    assert shared.left == [2]
    assert (task.epoch, announcer.speaks_until) == (NO_EPOCH, 0.0)


def test_leaving_a_shared_state_that_is_gone_is_no_error() -> None:
    task, shared, _, _ = make_task()

    async def live() -> None:
        await task.join()
        for trouble in (TierUnavailable("down"), LeaseExpired("lapsed")):
            shared.trouble = [trouble]
            await task.leave()

    asyncio.run(live())
    assert shared.left == []


def test_all_that_is_counted_is_taken_off_what_earlier_lives_counted_and_nothing_else() -> None:
    left = since(stats(red=10, blue=3), stats(red=4))
    assert left.tenants[RED].tokens == TokenCounts(asked=6, missed=6)
    assert left.tenants[BLUE].tokens == TokenCounts(asked=3, missed=3)
    assert left.tenants[RED].hot_blocks == 7


def test_a_new_life_publishes_no_counter_of_the_one_before() -> None:
    """By the field: one that is added and forgotten here is found."""
    states = {"hot_blocks", "hot_bytes", "hot_limit_bytes", "hot_reserved_bytes", "seconds", "curve", "tokens"}
    of = msgspec.convert({name: 3 for name in TenantStats.__struct_fields__ if name not in states}, TenantStats)
    traffic = msgspec.convert(dict.fromkeys(NodeTraffic.__struct_fields__, 1), NodeTraffic)
    counted = NodeStats(tenants={RED: of}, traffic=traffic)
    left = since(counted, counted)
    assert left.tenants[RED] == TenantStats()
    assert left.traffic == NodeTraffic(breaker_open=1)


def test_peers_are_the_others_whose_lease_runs() -> None:
    def view(node: str, left_s: float) -> NodeView:
        return NodeView(info(node, port=9), Epoch(5), left_s, NodeStats())

    views = [view("w1", 1.0), view("w2", 1.0), view("w3", 0.0)]
    assert live_peers(views, but="w1") == {NodeId("w2"): PeerAddress("w2", Epoch(5), "10.0.0.1", 9)}
