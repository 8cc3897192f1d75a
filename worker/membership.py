"""Keeps this node a member: joins, renews its lease, rejoins under a new epoch when the lease lapsed.

A life ends here no later than in Redis: its lease is counted from before the renewal was sent, by this machine's own
clock, and once that time is over this node is fenced: it says and lends nothing until it has joined again. Of two
processes with one name the later one has it; the earlier stays fenced, says so, and takes it back only when the other
has left or lapsed.

Also keeps the list of other nodes whose lease is running, so that an owner in the directory can be told from a ghost.
While Redis is unreachable nothing is dropped: the worker serves on, and rejoins by itself.

The counts of an ended life are kept by the cluster, so each life publishes only what it has counted itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from tiered.clock import Clock, SystemClock
from tiered.cluster.membership import Membership
from tiered.errors import OwnershipError, TierError
from tiered.jobs import PeerAddress
from tiered.log import get_logger
from tiered.types import NO_EPOCH, Epoch, NodeId, NodeInfo, NodeStats, NodeView, TenantStats
from worker.announce import Announcer
from worker.hot_tier import HotTier

_log = get_logger("worker.membership")


@dataclass(slots=True)
class MembershipTask:
    membership: Membership
    info: NodeInfo
    hot: HotTier
    announcer: Announcer
    lease_ttl_s: float
    heartbeat_s: float
    clock: Clock = field(default_factory=SystemClock)
    parted: bool = False
    """Whether this node has left for good, though its process goes on: it was drained."""
    connected: bool = True
    rejoins: int = field(default=0)
    _life: Epoch = NO_EPOCH
    _lease_ends: float = 0.0
    _heard_at: float = 0.0
    """When what renewed the lease last was sent; at first, when this began."""
    _usurper: NodeInfo | None = None
    _published: NodeStats = field(default_factory=NodeStats)
    """What this process had counted in all when it was last heard."""
    _before: NodeStats = field(default_factory=NodeStats)
    """The same as earlier lives told it: what they counted is theirs."""

    def __post_init__(self) -> None:
        self._heard_at = self.clock.now()

    @property
    def epoch(self) -> Epoch:
        """Of the life whose lease runs; NO_EPOCH while this node is fenced."""
        return self._life if self.clock.now() < self._lease_ends else NO_EPOCH

    @property
    def lease_left_s(self) -> float:
        """0 while this node is fenced."""
        return max(0.0, self._lease_ends - self.clock.now())

    @property
    def heartbeat_age_s(self) -> float:
        """Since the lease was taken or renewed last."""
        return self.clock.now() - self._heard_at

    async def join(self) -> None:
        """Become a member under a new epoch; all that is resident is announced under it. Errors: TierError.

        Whoever had the name before loses it.
        """
        sent_at = self.clock.now()
        self._life = await asyncio.to_thread(self.membership.join, self.info, lease_ttl_s=self.lease_ttl_s)
        self._usurper = None
        self._before = self._published
        self._lasts_from(sent_at)
        self.announcer.begin_life(self._life, self.hot.resident_hashes())
        _log.info("joined", node=self.info.node, epoch=self._life)
        await self.look_around()

    async def run(self) -> None:
        """Renew for ever."""
        while True:
            await asyncio.sleep(self.heartbeat_s)
            await self.beat()

    async def beat(self) -> None:
        """One renewal; a lapsed lease or an older epoch means joining again."""
        if self.parted:
            return
        if self.epoch == NO_EPOCH:
            await self._rejoin_or_wait("its lease has lapsed")
            return
        try:
            await self._renew()
            await self.look_around()
            self._found()
        except OwnershipError as error:
            await self._rejoin_or_wait(str(error))
        except TierError as error:
            self._lost(error)

    async def part(self) -> None:
        """Leave, and stay away until :meth:`come_back`."""
        self.parted = True
        self.announcer.fall_silent()
        await self._say_goodbye()

    async def come_back(self) -> None:
        self.parted = False
        await self._rejoin_or_wait("the drain was called off")

    async def leave(self) -> None:
        """Say the last counts and goodbye, so that nobody waits for the lease to lapse. Best effort."""
        if not self.parted and self.epoch != NO_EPOCH:
            await self._say_goodbye()

    async def _say_goodbye(self) -> None:
        try:
            await self._renew()
            self._lease_ends = self.announcer.speaks_until = 0.0  # by its own clock first: the answer may be lost
            await asyncio.to_thread(self.membership.leave, NodeId(self.info.node), self._life)
        except (OwnershipError, TierError) as error:
            _log.warning("left without saying so; the lease will lapse", error=str(error))

    async def _renew(self) -> None:
        stats = self.hot.stats()
        own = since(stats, self._before)
        sent_at, ends = self.clock.now(), self._lease_ends
        await asyncio.to_thread(
            self.membership.renew, NodeId(self.info.node), self._life, own, lease_ttl_s=self.lease_ttl_s
        )
        if self._lease_ends == ends:  # else it has left, or joined again, while this was on its way
            self._lasts_from(sent_at)
        self._published = stats

    def _lasts_from(self, sent_at: float) -> None:
        self._heard_at = sent_at
        self._lease_ends = self.announcer.speaks_until = sent_at + self.lease_ttl_s

    async def _rejoin_or_wait(self, reason: str) -> None:
        """Fenced from here on, until it is a member again; for good, if it parts meanwhile."""
        self._lease_ends = 0.0
        self.announcer.fall_silent()
        if self.parted:
            return
        try:
            if not await self._is_usurped():
                _log.warning("rejoining", node=self.info.node, epoch=self._life, reason=reason)
                await self.join()
                self.rejoins += 1
                if self.parted:
                    await self._say_goodbye()
            self._found()
        except TierError as error:
            self._lost(error)

    async def _is_usurped(self) -> bool:
        """Whether another process has this node's name and a lease that runs. Two that took it back would go on for
        ever.

        It has joined after us then. An older life is a snapshot's, and nobody may ever renew its lease.
        """
        views = await self.look_around()
        found = next((view for view in views if view.alive and view.info.node == self.info.node), None)
        if found is None or found.epoch < self._life:
            return False
        other = found.info
        if other == self.info:  # a join of ours whose answer was lost
            return False
        if other != self._usurper:
            self._usurper = other
            _log.error(
                "another worker took this node's name; this one shares nothing until that one is gone: give one of "
                "them another node.name",
                node=self.info.node,
                taken_by=f"{other.peer_host}:{other.peer_port}",
                pid=other.pid,
            )
        return True

    async def look_around(self) -> list[NodeView]:
        views = await asyncio.to_thread(self.membership.lives)
        live = live_peers(views, but=self.info.node)
        self.hot.live_peers = live
        self.hot.peers.forget(frozenset(live.values()))
        return views

    def _found(self) -> None:
        if not self.connected:
            _log.info("the shared state is reachable again", node=self.info.node)
        self.connected = True

    def _lost(self, error: TierError) -> None:
        if self.connected:
            _log.warning("the shared state is unreachable; serving on", error=str(error))
        self.connected = False


def since(stats: NodeStats, before: NodeStats) -> NodeStats:
    """The stats with only what was counted after ``before``."""
    nothing = TenantStats()
    tenants = {tenant: of.minus(before.tenants.get(tenant, nothing)) for tenant, of in stats.tenants.items()}
    return msgspec.structs.replace(stats, tenants=tenants, traffic=stats.traffic.minus(before.traffic))


def live_peers(views: list[NodeView], *, but: str) -> Mapping[NodeId, PeerAddress]:
    """Where each other running life serves blocks."""
    return {
        NodeId(view.info.node): PeerAddress(view.info.node, view.epoch, view.info.peer_host, view.info.peer_port)
        for view in views
        if view.alive and view.info.node != but
    }
