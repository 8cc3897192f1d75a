"""The leader's round against a real server: who may write, what survives whom, and when lost books are open again."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.leader.lending import LendTask
from coordinator.leader.rounds import every
from tests.unit.coordinator.builders import node_info
from tests.unit.coordinator.conftest import Parts
from tiered.clock import ManualClock
from tiered.cluster.connection import command
from tiered.cluster.leadership import Leadership
from tiered.cluster.shares import Held, Report, Shares
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import Epoch, NodeId

SETTLE_S = 5.0


class World:
    def __init__(self, parts: Parts) -> None:
        self.parts, self.clock = parts, ManualClock()
        self.shares = Shares(parts.client, parts.keys)
        self.leadership = Leadership(parts.client, parts.keys)
        self.token = self.elect("first")
        self.task = self.new_task()

    def elect(self, replica: str) -> int:
        leader = self.leadership.look()
        if leader is not None:
            self.leadership.resign(leader.replica)
        return self.leadership.ask(replica, "", lease_s=60).token

    def new_task(self) -> LendTask:
        parts, token = self.parts, self.token
        return LendTask(self.shares, parts.membership, parts.tenants, lambda: token, self.clock, settle_s=SETTLE_S)

    def join(self, name: str, *, capacity: int = 1_000) -> Epoch:
        return self.parts.membership.join(node_info(name, capacity_bytes=capacity), lease_ttl_s=60)

    def say(self, name: str, epoch: Epoch, tenants: dict[str, Held] | None = None) -> None:
        record = self.shares.books().lent.get(NodeId(name))
        revision = record.revision if record is not None and record.epoch == epoch else 0
        report = Report(epoch, revision, self.parts.tenants.revision(), tenants or {})
        self.shares.exchange(NodeId(name), report)

    def limits(self, tenant: str = "red") -> dict[str, int | None]:
        lent = self.shares.books().lent
        return {node: record.tenants[tenant].limit_bytes for node, record in lent.items() if tenant in record.tenants}

    def settle(self) -> None:
        self.task.round()
        self.clock.advance(SETTLE_S)
        self.task.round()


@pytest.fixture
def world(parts: Parts) -> World:
    return World(parts)


def test_nothing_is_lent_before_the_books_are_settled(world: World) -> None:
    world.parts.tenants.create(TenantPolicy(tenant="red", hot_total_limit_bytes=100))
    world.say("n1", world.join("n1"))
    world.task.round()
    assert world.limits() == {"n1": 0}
    world.clock.advance(SETTLE_S - 1)
    world.task.round()
    assert world.limits() == {"n1": 0}
    world.say("n1", world.parts.membership.nodes()[0].epoch)
    world.clock.advance(1)
    world.task.round()
    assert world.limits() == {"n1": 100}


def test_a_new_reign_goes_on_from_the_books_and_an_older_one_writes_nothing(world: World) -> None:
    world.settle()
    world.parts.tenants.create(TenantPolicy(tenant="red", hot_total_limit_bytes=100))
    world.say("n1", world.join("n1"))
    world.task.round()
    assert world.limits() == {"n1": 100}
    old = world.task
    world.token = world.elect("second")
    world.task = world.new_task()
    world.parts.tenants.replace(TenantPolicy(tenant="red", hot_total_limit_bytes=40))
    old.round()
    assert world.limits() == {"n1": 100}
    world.task.round()
    assert world.limits() == {"n1": 40}


def test_whoever_does_not_lead_reads_and_writes_nothing(world: World) -> None:
    world.token = 0
    world.new_task().round()
    assert world.shares.books().revision == 0


def test_a_server_that_forgot_the_books_is_settled_anew(world: World) -> None:
    world.settle()
    world.parts.tenants.create(TenantPolicy(tenant="red", hot_total_limit_bytes=100))
    world.say("n1", world.join("n1"))
    world.task.round()
    command(world.parts.client, "DEL", world.parts.keys.shares())
    world.say("n1", world.parts.membership.nodes()[0].epoch, {"red": Held(30, 30)})
    world.task.round()
    assert world.limits() == {"n1": 30}, "what it says it holds, and no more"
    world.clock.advance(SETTLE_S)
    world.say("n1", world.parts.membership.nodes()[0].epoch, {"red": Held(30, 30)})
    world.task.round()
    assert world.limits() == {"n1": 100}


def test_a_policy_that_cannot_be_read_costs_the_others_nothing(world: World) -> None:
    world.settle()
    world.parts.tenants.create(TenantPolicy(tenant="red", hot_total_limit_bytes=100))
    world.parts.tenants.create(TenantPolicy(tenant="blue", hot_total_limit_bytes=80))
    world.say("n1", world.join("n1"))
    world.task.round()
    command(world.parts.client, "HSET", world.parts.keys.tenants(), "blue", "{}")
    world.parts.tenants.replace(TenantPolicy(tenant="red", hot_total_limit_bytes=50))
    world.say("n1", world.parts.membership.nodes()[0].epoch, {"red": Held(100), "blue": Held(80)})
    world.task.round()
    assert (world.limits(), world.limits("blue")) == ({"n1": 50}, {"n1": 80})


def test_each_unnamed_tenant_has_the_default_total_for_itself(world: World) -> None:
    world.settle()
    world.parts.tenants.replace(TenantPolicy(tenant=DEFAULT_TENANT, hot_total_limit_bytes=100))
    world.say("n1", world.join("n1"), {"default": Held(0), "guest": Held(0, 0, 5), "other": Held(0, 0, 5)})
    world.task.round()
    world.say("n1", world.parts.membership.nodes()[0].epoch, {"guest": Held(0, 0, 9), "other": Held(0, 0, 9)})
    world.task.round()
    assert world.limits("guest") == {"n1": 100}
    assert world.limits("other") == {"n1": 100}


def test_rounds_begin_only_while_they_may() -> None:
    allowed = iter([False, False, True])
    done: list[int] = []

    async def run() -> None:
        stop = asyncio.Event()

        def round_() -> None:
            done.append(len(done))
            loop.call_soon_threadsafe(stop.set)

        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            await every(0.001, round_, what="test", stop=stop, may=lambda: next(allowed, False))

    asyncio.run(run())
    assert done == [0]
    assert list(allowed) == []
