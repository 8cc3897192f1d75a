"""One coordinator process, put together as ``coordinator.app`` does it, without its HTTP port.

What it decides, and in which rounds, is the coordinator's own.
"""

from __future__ import annotations

import asyncio

from coordinator.leader.audit import AuditTask
from coordinator.leader.deal import DealTask
from coordinator.leader.leading import Leading
from coordinator.leader.lending import LendTask
from coordinator.leader.remember import RememberTask
from coordinator.leader.rounds import every
from coordinator.leader.runner import Sweeper
from coordinator.leader.seconds import Seconds
from coordinator.view.follower import Follower
from coordinator.view.keeper import ViewKeeper
from coordinator.view.mirror import Mirror
from coordinator.view.reader import ClusterReader
from tests.sim.loop import Host
from tests.sim.network import Network
from tests.sim.server import SharedState
from tests.sim.wires import SimClient
from tiered.clock import SystemClock
from tiered.cluster.allotments import Allotments
from tiered.cluster.audit import Auditor
from tiered.cluster.birth import Births
from tiered.cluster.census import Census
from tiered.cluster.changes import Changes
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys
from tiered.cluster.leadership import Leadership
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.membership import Membership
from tiered.cluster.replicas import Replicas
from tiered.cluster.shares import Shares
from tiered.cluster.tenants import Tenants


class Coordinator:
    def __init__(
        self,
        network: Network,
        shared: SharedState,
        host: Host,
        *,
        keys: Keys,
        interval_s: float,
        lease_s: float,
        audits: bool,
    ) -> None:
        """lease_s: the nodes', and the leader's. audits: False where the tier holds nothing worth walking over."""
        self.host = host
        self._interval_s = interval_s
        self._audits = audits
        client, clock = SimClient(network, shared, timeout_s=2.0), SystemClock()
        membership, tenants = Membership(client, keys), Tenants(client, keys)
        shares, directory = Shares(client, keys), Directory(client, keys)
        reader = ClusterReader(
            membership=membership, ledger=RedisLedger(client, keys), tenants=tenants, shares=shares
        )
        self.keeper = ViewKeeper(reader.read, clock)
        self.leading = Leading(Leadership(client, keys), clock, lease_s, replica=host.name)
        replicas = Replicas(client, keys, clock, timeout_s=2.0)
        self.sweeper = Sweeper(membership=membership, directory=directory, asked=Seconds(tenants, replicas).asked)
        self.audit = AuditTask(Auditor(client, keys), tenants)
        self.lend = LendTask(shares, membership, tenants, self.leading.token, clock, settle_s=lease_s)
        self.remember = RememberTask(tenants, Births(client, keys), leads=self.leading.leads)
        self.deal = DealTask(Allotments(client, keys))
        self.follower = Follower(
            Changes(client, keys), Census(client, keys), Mirror(keys.partitions), lambda: self.keeper.view, clock
        )

    async def run(self) -> None:
        stop, leads, interval_s = asyncio.Event(), self.leading.leads, self._interval_s
        async with asyncio.TaskGroup() as group:
            group.create_task(self.keeper.run(stop, interval_s=interval_s))
            group.create_task(self.follower.run(stop))
            group.create_task(every(interval_s, self.remember.round, what="policies", stop=stop))
            group.create_task(self.leading.run(stop))
            rounds = [("sweep", self.sweeper.round, interval_s), ("deal", self.deal.round, interval_s)]
            rounds += [("shares", self.lend.round, interval_s / 2)]
            rounds += [("audit", self.audit.round, interval_s)] if self._audits else []
            for what, round_, interval in rounds:
                group.create_task(every(interval, round_, what=what, stop=stop, may=leads))
