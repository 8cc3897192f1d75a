"""The worker's side of shares: what it reports, what it takes, and what stays in force when nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from tests.unit.core.builders import BLOCK_BYTES, World, chain
from tiered.cluster.shares import Held, Lent, Record, Report, Shares
from tiered.core.allocate import Shortfall, allocate
from tiered.errors import LeaseExpired, TierUnavailable
from tiered.tenancy.policy import Share, TenantPolicy
from tiered.types import Epoch, NodeId, TenantId
from worker.hot_tier import HotTier
from worker.membership import MembershipTask
from worker.share import ShareTask, report_of
from worker.tenants import TenantsTask

RED, BLUE, GUEST = TenantId("red"), TenantId("blue"), TenantId("guest")
BOUNDED = TenantPolicy(tenant=RED, hot_total_limit_bytes=1_000, hot_limit_bytes=700)


def policies(*items: TenantPolicy) -> dict[TenantId, TenantPolicy]:
    return {TenantId(item.tenant): item for item in (TenantPolicy(tenant="default"), *items)}


class FakeShares:
    def __init__(self) -> None:
        self.record: Record | None = None
        self.trouble: Exception | None = None
        self.heard: list[Report] = []
        self.on_exchange: Any = lambda: None

    def exchange(self, node: NodeId, report: Report) -> Record | None:
        self.on_exchange()
        if self.trouble is not None:
            raise self.trouble
        self.heard.append(report)
        return self.record


class FakeHot:
    """The hot tier before its first engine."""

    pool = None

    def __init__(self) -> None:
        self.policies: Mapping[TenantId, TenantPolicy] = policies(BOUNDED)
        self.shares: Mapping[TenantId, Share] = {}

    def set_shares(self, shares: Mapping[TenantId, Share]) -> None:
        self.shares = shares


class FakeMember:
    epoch = Epoch(5)


class FakePolicies:
    revision = 3


class Task:
    def __init__(self) -> None:
        self.shares, self.hot, self.member = FakeShares(), FakeHot(), FakeMember()
        self.task = ShareTask(
            cast(Shares, self.shares),
            NodeId("n"),
            cast(HotTier, self.hot),
            cast(MembershipTask, self.member),
            cast(TenantsTask, FakePolicies()),
        )

    def exchange(self) -> bool:
        return asyncio.run(self.task.exchange())


def record(limit: int, *, epoch: int = 5, revision: int = 9) -> Record:
    return Record(epoch, revision, {"red": Lent(limit, 10, limit)})


def test_what_is_lent_is_taken_once_and_confirmed_with_the_next_report() -> None:
    task = Task()
    assert not task.exchange()
    task.shares.record = record(400)
    assert task.exchange()
    assert task.hot.shares == {RED: Share(400, 10)}
    assert not task.exchange()
    assert task.shares.heard[-1] == Report(5, 9, 3, {"red": Held(400)})


@pytest.mark.parametrize(
    "stale", [record(900, epoch=4, revision=10), record(900, revision=9), record(900, revision=1)]
)
def test_a_record_of_another_life_or_an_older_one_is_not_taken(stale: Record) -> None:
    task = Task()
    task.shares.record = record(400)
    task.exchange()
    task.shares.record = stale
    assert not task.exchange()
    assert task.hot.shares[RED].limit_bytes == 400


def test_a_record_that_was_on_its_way_while_the_life_ended_is_not_taken() -> None:
    task = Task()
    task.shares.record = record(400)

    def rejoin() -> None:
        task.member.epoch = Epoch(6)

    task.shares.on_exchange = rejoin
    assert not task.exchange()
    assert task.hot.shares == {}


@pytest.mark.parametrize(
    "trouble", [LeaseExpired("fenced"), TierUnavailable("gone"), msgspec.DecodeError("of a later version")]
)
def test_the_last_share_stays_whatever_goes_wrong(trouble: Exception) -> None:
    task = Task()
    task.shares.record = record(400)
    task.exchange()
    task.shares.trouble = trouble
    assert not task.exchange()
    assert task.hot.shares == {RED: Share(400, 10)}
    assert task.task.revision == 9


def test_a_worker_without_totals_does_not_wait_for_a_share_and_one_with_them_not_for_ever() -> None:
    task = Task()
    asyncio.run(task.task.begin(within_s=0.0))
    assert len(task.shares.heard) == 1
    task.hot.policies = policies()
    asyncio.run(task.task.begin(within_s=60.0))
    assert len(task.shares.heard) == 2


def bounded_world(shares: dict[TenantId, Share]) -> World:
    world = World(10)
    world.core.set_policies(policies(BOUNDED), shares)
    return world


def ask(world: World, tenant: TenantId, name: str, n_blocks: int) -> tuple[int, Shortfall]:
    grant = allocate(world.core, world.open(chain(name, n_blocks), tenant=tenant), n_blocks_max=n_blocks)
    return len(grant.block_ids), grant.shortfall


def test_without_a_share_nothing_may_be_cached_and_the_want_is_counted() -> None:
    world = bounded_world({})
    assert ask(world, RED, "a", 3) == (0, Shortfall.QUOTA)
    report = report_of(policies(BOUNDED), {}, world.core, epoch=1, revision=0, policies_revision=1)
    assert report.tenants == {"red": Held(0, 0, 3 * BLOCK_BYTES)}


def test_a_total_that_is_new_here_keeps_what_is_held_and_takes_nothing_more() -> None:
    world = World(10)
    world.core.set_policies(policies(), {})
    assert ask(world, RED, "a", 3) == (3, Shortfall.NONE)
    world.core.set_policies(policies(BOUNDED), {})
    assert ask(world, RED, "b", 1)[0] == 0
    report = report_of(policies(BOUNDED), {}, world.core, epoch=1, revision=0, policies_revision=1)
    assert report.tenants["red"].held_bytes == 3 * BLOCK_BYTES


def test_the_lower_of_share_and_limit_per_node_is_in_force_and_reported() -> None:
    world = bounded_world({RED: Share(900)})
    report = report_of(policies(BOUNDED), {RED: Share(900)}, world.core, epoch=1, revision=0, policies_revision=1)
    assert report.tenants == {"red": Held(700)}
    assert ask(world, RED, "a", 9)[0] == 7


def test_an_unnamed_tenant_is_reported_once_it_is_seen_and_bounded_by_its_own_share() -> None:
    default = TenantPolicy(tenant="default", hot_total_limit_bytes=1_000)
    mine = {TenantId("default"): default}
    world = World(10)
    world.core.set_policies(mine, {})
    assert ask(world, GUEST, "a", 2) == (0, Shortfall.QUOTA)
    report = report_of(mine, {}, world.core, epoch=1, revision=0, policies_revision=1)
    assert report.tenants == {"default": Held(0), "guest": Held(0, 0, 2 * BLOCK_BYTES)}
    world.core.set_policies(mine, {GUEST: Share(200)})
    assert ask(world, GUEST, "a", 2) == (2, Shortfall.NONE)
    assert ask(world, BLUE, "b", 1) == (0, Shortfall.QUOTA)


def test_a_reservation_lent_is_kept_on_top_of_a_lower_one_per_node() -> None:
    policy = TenantPolicy(tenant=RED, hot_reserved_bytes=100, hot_total_reserved_bytes=600)
    world = World(10)
    world.core.set_policies(policies(policy), {RED: Share(None, 400)})
    assert world.core.ledger.reserved_bytes(RED) == 400
    world.core.set_policies(policies(policy), {})
    assert world.core.ledger.reserved_bytes(RED) == 100
    world.core.set_policies(policies(policy))
    assert world.core.ledger.reserved_bytes(RED) == 600
