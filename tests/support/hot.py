"""A worker's hot tier without the worker, over a real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support.content import LAYOUT
from tests.support.redis_server import settings_for
from tiered.clock import SystemClock
from tiered.cluster.embedded import EmbeddedServer
from tiered.config import PoolSettings
from tiered.tiers.peer import PeerTier
from tiered.tiers.redis.tier import RedisTier
from worker.hot_tier import HotTier


@contextmanager
def hot_tier(server: EmbeddedServer, *, n_blocks: int) -> Iterator[HotTier]:
    with ExitStack() as stack:
        redis, peers = RedisTier(settings_for(server)), PeerTier("w1", "", timeout_s=1.0)
        stack.callback(redis.close)
        stack.callback(peers.close)
        yield HotTier(PoolSettings(bytes=n_blocks * LAYOUT.block_bytes), redis, peers, SystemClock())
