"""Keeps this node a member: joins, renews its lease, rejoins under a new epoch when the lease lapsed.

Also keeps the list of other nodes whose lease is running, so that an owner in the directory can be told from a ghost.
While Redis is unreachable nothing is dropped: the worker serves on, and rejoins by itself.

The counts of an ended life are kept by the cluster, so each life publishes only what it has counted itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from tiered.cluster.membership import Membership
from tiered.errors import OwnershipError, TierError
from tiered.jobs import PeerAddress
from tiered.log import get_logger
from tiered.types import NO_EPOCH, Epoch, NodeId, NodeInfo, NodeStats, NodeView, TokenCounts
from worker.announce import Announcer
from worker.hot_tier import HotTier

Tokens: TypeAlias = Mapping[str, TokenCounts]

_log = get_logger("worker.membership")


@dataclass(slots=True)
class MembershipTask:
    membership: Membership
    info: NodeInfo
    hot: HotTier
    announcer: Announcer
    lease_ttl_s: float
    heartbeat_s: float
    epoch: Epoch = NO_EPOCH
    connected: bool = True
    rejoins: int = field(default=0)
    _published: Tokens = field(default_factory=dict)
    """What this process had counted in all when it was last heard."""
    _before: Tokens = field(default_factory=dict)
    """The part of it that belongs to earlier lives."""

    async def join(self) -> None:
        """Become a member under a new epoch; all that is resident is announced under it. Errors: TierError."""
        self.epoch = await asyncio.to_thread(self.membership.join, self.info, lease_ttl_s=self.lease_ttl_s)
        self._before = self._published
        self.announcer.begin_life(self.epoch, self.hot.resident_hashes())
        _log.info("joined", node=self.info.node, epoch=self.epoch)
        await self._look_around()

    async def run(self) -> None:
        """Renew for ever."""
        while True:
            await asyncio.sleep(self.heartbeat_s)
            await self.beat()

    async def beat(self) -> None:
        """One renewal; a lapsed lease or an older epoch means joining again."""
        try:
            if self.announcer.lost_track:
                await self._rejoin("announcements were lost")
            await self._renew()
            await self._look_around()
            if not self.connected:
                _log.info("the shared state is reachable again", node=self.info.node)
            self.connected = True
        except OwnershipError as error:
            await self._rejoin_or_wait(str(error))
        except TierError as error:
            self._lost(error)

    async def leave(self) -> None:
        """Say the last counts and goodbye, so that nobody waits for the lease to lapse. Best effort."""
        try:
            await self._renew()
            await asyncio.to_thread(self.membership.leave, NodeId(self.info.node), self.epoch)
        except (OwnershipError, TierError) as error:
            _log.warning("left without saying so; the lease will lapse", error=str(error))

    async def _renew(self) -> None:
        stats = self.hot.stats()
        own = since(stats, self._before)
        await asyncio.to_thread(
            self.membership.renew, NodeId(self.info.node), self.epoch, own, lease_ttl_s=self.lease_ttl_s
        )
        self._published = {tenant: of.tokens for tenant, of in stats.tenants.items()}

    async def _rejoin_or_wait(self, reason: str) -> None:
        try:
            await self._rejoin(reason)
        except TierError as error:
            self._lost(error)

    async def _rejoin(self, reason: str) -> None:
        _log.warning("rejoining", node=self.info.node, epoch=self.epoch, reason=reason)
        await self.join()
        self.rejoins += 1

    async def _look_around(self) -> None:
        views = await asyncio.to_thread(self.membership.nodes)
        live = live_peers(views, but=self.info.node)
        self.hot.live_peers = live
        self.hot.peers.forget(frozenset(live.values()))

    def _lost(self, error: TierError) -> None:
        if self.connected:
            _log.warning("the shared state is unreachable; serving on", error=str(error))
        self.connected = False


def since(stats: NodeStats, before: Tokens) -> NodeStats:
    """The stats with only those tokens that were counted after ``before``."""
    tenants = {
        tenant: msgspec.structs.replace(of, tokens=of.tokens.minus(before.get(tenant, TokenCounts())))
        for tenant, of in stats.tenants.items()
    }
    return msgspec.structs.replace(stats, tenants=tenants)


def live_peers(views: list[NodeView], *, but: str) -> Mapping[NodeId, PeerAddress]:
    """Where each other running life serves blocks."""
    return {
        NodeId(view.info.node): PeerAddress(view.info.node, view.epoch, view.info.peer_host, view.info.peer_port)
        for view in views
        if view.alive and view.info.node != but
    }
