"""Which of the worker's parts says what of the snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from tiered.tiers.peer import PeerTier
from tiered.tiers.redis.tier import RedisTier
from worker.announce import Announcer
from worker.hot_tier import HotTier
from worker.local_server import LocalServer
from worker.lost import LostTask
from worker.membership import MembershipTask
from worker.metrics.snapshot import DirectoryFacts, Standing, WorkerSnapshot, copies_snapshot, why_snapshot
from worker.peer_server import PeerServer
from worker.why import WhyRing


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    node: str
    hot: HotTier
    redis: RedisTier
    peers: PeerTier
    peer_server: PeerServer
    local_server: LocalServer
    membership: MembershipTask
    announcer: Announcer
    lost: LostTask
    why: WhyRing

    def take(self) -> WorkerSnapshot:
        """On the loop, where nothing of it changes meanwhile."""
        announcer, hot = self.announcer, self.hot
        return WorkerSnapshot(
            standing=Standing(
                node=self.node,
                epoch=self.membership.epoch,
                lease_left_s=self.membership.lease_left_s,
                heartbeat_age_s=self.membership.heartbeat_age_s,
                rejoins=self.membership.rejoins,
                connected=self.membership.connected,
                peers_alive=len(hot.live_peers),
            ),
            directory=DirectoryFacts(announcer.counters(), announcer.pending_blocks, announcer.differing),
            copies=copies_snapshot(hot.seconds, self.lost.counters),
            stats=hot.stats(),
            blocks_by_state=hot.blocks_by_state(),
            charged_bytes=hot.charged_bytes,
            timings=hot.timings.copy(),
            engines_refused=dict(self.local_server.refused),
            moved=hot.moved,
            why=why_snapshot(self.why),
            journal=hot.journal_snapshot(),
            redis=self.redis.counters(),
            peers=self.peers.counters(),
            served=self.peer_server.counters(),
            plans=hot.plans,
        )
