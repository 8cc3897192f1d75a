"""The one place that knows every part of the worker: builds them, starts them, stops them in reverse."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from prometheus_client import CollectorRegistry

from tiered import __version__, tracing
from tiered.clock import SystemClock
from tiered.cluster.agreement import require_agreement
from tiered.cluster.clears import Clears
from tiered.cluster.connection import connect, require_reachable
from tiered.cluster.directory import Directory
from tiered.cluster.drains import Drains
from tiered.cluster.lost import LostCopies
from tiered.cluster.membership import Membership
from tiered.cluster.shares import Shares
from tiered.cluster.tenants import Tenants
from tiered.errors import ConfigError, TierError
from tiered.eviction.registry import policy_factory
from tiered.log import get_logger
from tiered.pool.pool import require_device
from tiered.tiers.peer import PeerTier
from tiered.tiers.redis.tier import RedisTier
from tiered.types import NodeId, NodeInfo
from worker.announce import Announcer
from worker.clear import ClearTask
from worker.drain import DrainTask
from worker.hot_tier import HotTier
from worker.hottest import HottestTask
from worker.http_server import HttpServer
from worker.journal import HotJournal
from worker.local_server import LocalServer
from worker.lost import LostTask
from worker.membership import MembershipTask
from worker.metrics.collector import WorkerCollector
from worker.metrics.sources import Sources
from worker.on_loop import Lending, on_loop
from worker.peer_server import PeerServer
from worker.readiness import Readiness
from worker.second import SecondCopiesTask
from worker.settings import Settings
from worker.share import ShareTask
from worker.tenants import TenantsTask
from worker.warm import JournalTask
from worker.why import WhyRing

FLUSH_S = 2.0
"""What an orderly stop grants to copies on their way to Redis: all of it must end well before orchestrators lose
patience, even when Redis does not answer."""

_log = get_logger("worker")


async def serve(settings: Settings, *, on_ready: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT. Errors: ConfigError before anything is left half-started."""
    loop = asyncio.get_running_loop()
    stop = _asked_to_stop(loop)  # before anything is started, so that a stop during the start is an orderly one
    policy_factory(settings.pool.policy)  # what is unknown here stops the start, not the first engine
    require_device(settings.pool.device)
    async with AsyncExitStack() as stack:
        exporter = tracing.start(settings.tracing, service="tiered-worker", instance=settings.node.name)
        stack.push_async_callback(asyncio.to_thread, exporter.stop)
        client = connect(settings.redis, timeout_s=settings.redis.control_timeout_s)
        stack.callback(client.close)
        require_reachable(client, settings.redis)
        keys = require_agreement(client, settings.redis)

        clock = SystemClock()
        why = WhyRing(events_max=settings.why.events_max, bytes_max=settings.why.bytes_max)
        redis = RedisTier(settings.redis, clock, why=why)
        stack.callback(redis.close)
        peers = PeerTier(
            settings.node.name, settings.cluster.secret, timeout_s=settings.cluster.peer_timeout_s, clock=clock
        )
        stack.callback(peers.close)
        journal = _journal(settings)
        hot = HotTier(settings.pool, redis, peers, clock, journal=journal, why=why)
        stack.push_async_callback(hot.close, timeout_s=FLUSH_S)

        lending = Lending(hot, loop)
        peer_server = PeerServer(
            settings.node.peer_host,
            settings.node.peer_port,
            lending,
            node=settings.node.name,
            secrets=settings.cluster.secrets,
            timeout_s=settings.cluster.peer_timeout_s,
        )
        stack.callback(peer_server.stop)
        hot.sent_bytes = lambda: peer_server.counters().sent_bytes
        local_server = LocalServer(
            settings.node.socket, hot, node=settings.node.name, match_lease_s=settings.pool.match_lease_s
        )
        await local_server.start()
        stack.push_async_callback(local_server.stop)
        # What is asked on the loop is there, below, before the loop has its next turn.
        registry = CollectorRegistry()
        registry.register(WorkerCollector(lambda: on_loop(loop, lambda: sources.take())))
        http = HttpServer(
            settings.node.metrics_host,
            settings.node.metrics_port,
            registry,
            lambda: on_loop(loop, lambda: readiness()),
        )
        stack.callback(http.stop)

        announcer = Announcer(
            Directory(client, keys), NodeId(settings.node.name), hot, settings.cluster.announce_interval_s
        )
        membership = MembershipTask(
            Membership(client, keys),
            _node_info(settings, peer_port=peer_server.port, metrics_port=http.port),
            hot,
            announcer,
            lease_ttl_s=settings.cluster.lease_ttl_s,
            heartbeat_s=settings.cluster.heartbeat_s,
        )
        lending.membership = membership

        lost = LostTask(hot, LostCopies(client, keys))

        def readiness() -> Readiness:
            return Readiness(
                serves_engines=local_server.serving,
                drains=hot.draining,
                epoch=membership.epoch,
                redis_connected=membership.connected,
            )

        sources = Sources(
            node=settings.node.name,
            hot=hot,
            redis=redis,
            peers=peers,
            peer_server=peer_server,
            local_server=local_server,
            membership=membership,
            announcer=announcer,
            lost=lost,
            why=why,
        )

        tenants = TenantsTask(Tenants(client, keys), hot)
        await tenants.look()
        await _join(membership)
        share = ShareTask(Shares(client, keys), NodeId(settings.node.name), hot, membership, tenants)
        await share.begin()
        drain = DrainTask(NodeId(settings.node.name), Drains(client, keys), hot, membership)
        stack.push_async_callback(_part, local_server, hot, membership, drain, settings.cluster.drain_on_stop_s)
        peer_server.start()
        on_ready(f"worker {settings.node.name} ready on unix://{settings.node.socket}")

        seconds = SecondCopiesTask(NodeId(settings.node.name), hot)
        tasks = [membership.run(), announcer.run(), tenants.run(), share.run(), drain.run(), HottestTask(hot).run()]
        tasks += [seconds.run(), lost.run(), ClearTask(Clears(client, keys), hot).run()]
        if journal is not None:
            tasks.append(JournalTask(hot, journal).run())
        await _run_until(stop, *tasks)
        _log.info("stopping", node=settings.node.name)


async def _join(membership: MembershipTask) -> None:
    try:
        await membership.join()
    except TierError as error:
        raise ConfigError(f"redis.url: {error}; start Redis or correct the URL", field="redis.url") from None


async def _part(
    local_server: LocalServer, hot: HotTier, membership: MembershipTask, drain: DrainTask, drain_s: float
) -> None:
    """Engines first, so that what they asked for is counted; then the last words, while copies are written."""
    await local_server.stop()
    if drain_s > 0 and not membership.parted:
        renewing = asyncio.create_task(membership.run())
        try:
            await drain.empty(timeout_s=drain_s)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
    await asyncio.gather(membership.leave(), hot.close(timeout_s=FLUSH_S))
    await drain.withdraw()


def _journal(settings: Settings) -> HotJournal | None:
    if settings.journal.mode == "off" or not (settings.journal.path or settings.journal_path.parent.is_dir()):
        return None  # no journal is wanted, or there will be no socket either, which says so in a moment
    return HotJournal(settings.journal, settings.journal_path, node=settings.node.name)


def _asked_to_stop(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _run_until(stop: asyncio.Event, *tasks: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(task) for task in tasks]
        await stop.wait()
        for task in running:
            task.cancel()


def _node_info(settings: Settings, *, peer_port: int, metrics_port: int) -> NodeInfo:
    return NodeInfo(
        node=settings.node.name,
        peer_host=settings.node.advertise_host or settings.node.peer_host,
        peer_port=peer_port,
        metrics_port=metrics_port,
        socket_path=str(settings.node.socket),
        capacity_bytes=settings.pool.bytes,
        pid=os.getpid(),
        version=__version__,
        instance=uuid.uuid4().hex,
    )
