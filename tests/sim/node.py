"""One worker process, put together as ``worker.app`` does it, without an engine's socket and a metrics port.

Owns what a process is born with and how it ends. What it decides is the worker's own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tests.sim.loop import Host, SimLoop
from tests.sim.network import Network
from tests.sim.server import SharedState
from tests.sim.wires import SimClient
from tiered.clock import SystemClock
from tiered.cluster.directory import Directory
from tiered.cluster.drains import Drains
from tiered.cluster.keys import Keys
from tiered.cluster.lost import LostCopies
from tiered.cluster.membership import Membership
from tiered.cluster.shares import Shares
from tiered.cluster.tenants import Tenants
from tiered.config import PoolSettings, RedisSettings
from tiered.errors import TierError
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.tenancy.policy import Share
from tiered.tiers.peer import PeerTier
from tiered.tiers.redis.tier import RedisTier
from tiered.types import BlockHash, Epoch, NodeId, NodeInfo, TenantId
from tiered.wire.messages import Explain, Explained, Recent
from worker.announce import Announcer
from worker.drain import DrainTask
from worker.hot_tier import HotTier, Lent
from worker.lost import LostTask
from worker.membership import MembershipTask
from worker.peer_server import PeerServer
from worker.second import SecondCopiesTask
from worker.share import ShareTask
from worker.tenants import TenantsTask
from worker.why import WhyRing

LAYOUT = KvLayout(n_layers=1, n_kv_heads=1, head_dim=1, dtype="uint8", block_tokens=16)
"""A block is as long as a hash, so that its right bytes are its hash."""

SCOPE = ModelScope(model="simulated", weights_version="1", layout=LAYOUT)

SECRET = "simulated"

START_AGAIN_S = 1.0
"""A worker that cannot join at its start ends; whoever supervises it starts it again."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a node does what it does."""

    lease_s: float = 3.0
    heartbeat_s: float = 1.0
    announce_s: float = 0.25


@dataclass(slots=True)
class SharedHot(HotTier):
    """Remembers of which life the shares in force are."""

    membership: MembershipTask | None = None
    lent_to: Epoch = field(default=Epoch(0))

    def set_shares(self, shares: dict[TenantId, Share]) -> None:  # type: ignore[override]
        assert self.membership is not None
        HotTier.set_shares(self, shares)
        self.lent_to = self.membership.epoch


class Node:
    """One life of one process of that name at that address."""

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        shared: SharedState,
        host: Host,
        *,
        name: NodeId,
        keys: Keys,
        pool: PoolSettings,
        pace: Pace,
        instance: str,
    ) -> None:
        self.loop, self.network, self.host, self.name, self.pace = loop, network, host, name, pace
        settings = RedisSettings(namespace=keys.namespace, partitions=keys.partitions)
        client = SimClient(network, shared, timeout_s=settings.control_timeout_s)
        clock = SystemClock()
        self.redis = RedisTier(settings, clock)
        self.peers = PeerTier(name, SECRET, timeout_s=2.0, clock=clock)
        self.hot = SharedHot(pool, self.redis, self.peers, clock, why=WhyRing(events_max=100, bytes_max=1 << 16))
        self.lending = Lending(self.hot)
        self.server = PeerServer(host.name, 0, self.lending, node=name, secrets=(SECRET,), timeout_s=2.0)
        info = NodeInfo(
            name,
            host.name,
            self.server.port,
            0,
            f"/{name}",
            capacity_bytes=pool.bytes,
            instance=instance,
        )
        self.announcer = Announcer(Directory(client, keys), name, self.hot, pace.announce_s)
        self.membership = MembershipTask(
            Membership(client, keys),
            info,
            self.hot,
            self.announcer,
            lease_ttl_s=pace.lease_s,
            heartbeat_s=pace.heartbeat_s,
        )
        self.hot.membership = self.lending.membership = self.membership
        self.tenants = TenantsTask(Tenants(client, keys), self.hot)
        self.share = ShareTask(Shares(client, keys), name, self.hot, self.membership, self.tenants)
        self.second = SecondCopiesTask(name, self.hot)
        self.lost = LostTask(self.hot, LostCopies(client, keys))
        self.drain = DrainTask(name, Drains(client, keys), self.hot, self.membership)
        self.ready = asyncio.Event()
        self.connections = 0
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._running = asyncio.current_task()
        await self.tenants.look()
        while True:
            try:
                await self.membership.join()
                break
            except TierError:
                await asyncio.sleep(START_AGAIN_S)
        await self.share.begin()
        self.server.start()
        await self.hot.attach(SCOPE, self.attach())
        self.ready.set()
        async with asyncio.TaskGroup() as group:
            for task in (
                self.membership,
                self.announcer,
                self.tenants,
                self.share,
                self.second,
                self.lost,
                self.drain,
            ):
                group.create_task(task.run())

    async def leave(self) -> None:
        """An orderly stop, as far as others see it."""
        if self._running is not None:
            self._running.cancel()
        await self.membership.leave()

    def attach(self) -> int:
        """The number of one more engine's connection."""
        self.connections += 1
        return self.connections

    @property
    def is_ready(self) -> bool:
        return self.host.alive and self.ready.is_set()

    @property
    def memory(self) -> BlockPool:
        pool = self.hot.pool
        assert pool is not None
        return pool


class Lending:
    """The hot tier as the peer server's threads see it; see ``worker.on_loop``."""

    def __init__(self, hot: HotTier) -> None:
        self._hot = hot
        self.membership: MembershipTask | None = None

    def lend(self, hashes: list[BlockHash], *, scope_id: bytes) -> Lent | None:
        return self._hot.lend(hashes, scope_id=scope_id)

    def take_back(self, lent: Lent) -> None:
        self._hot.take_back(lent)

    def epoch(self) -> int:
        return 0 if self.membership is None else self.membership.epoch

    def pool(self) -> BlockPool | None:
        return self._hot.pool

    def explain(self, request: Explain | Recent) -> Explained:
        return self._hot.explain(request)
