"""The one place that knows every part of the worker: builds them, starts them, stops them in reverse."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, start_http_server

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
from tiered.errors import ConfigError, TierError, TierTimeout, TierUnavailable
from tiered.eviction.registry import policy_factory
from tiered.log import get_logger
from tiered.pool.pool import BlockPool, require_device
from tiered.tiers.peer import PeerTier
from tiered.tiers.redis.tier import RedisTier
from tiered.types import BlockHash, NodeId, NodeInfo
from tiered.wire.messages import Explain, Explained, Recent
from worker.announce import Announcer
from worker.clear import ClearTask
from worker.drain import DrainTask
from worker.hot_tier import HotTier, Lent
from worker.hottest import HottestTask
from worker.journal import HotJournal
from worker.local_server import LocalServer
from worker.lost import LostTask
from worker.membership import MembershipTask
from worker.metrics.collector import WorkerCollector
from worker.metrics.snapshot import DirectoryFacts, Standing, WorkerSnapshot, copies_snapshot, why_snapshot
from worker.peer_server import PeerServer
from worker.second import SecondCopiesTask
from worker.settings import Settings
from worker.share import ShareTask
from worker.tenants import TenantsTask
from worker.warm import JournalTask
from worker.why import WhyRing

LOOP_ANSWER_S = 2.0
"""How long a thread waits for the event loop: it only ever runs short decisions."""

FLUSH_S = 2.0
"""What an orderly stop grants to copies on their way to Redis: all of it must end well before orchestrators lose
patience, even when Redis does not answer."""

_log = get_logger("worker")
T = TypeVar("T")


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

        lending = _Lending(hot, loop)
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
        metrics_port = _serve_metrics(settings, stack, lambda: _on_loop(loop, snapshot))

        announcer = Announcer(
            Directory(client, keys), NodeId(settings.node.name), hot, settings.cluster.announce_interval_s
        )
        membership = MembershipTask(
            Membership(client, keys),
            _node_info(settings, peer_port=peer_server.port, metrics_port=metrics_port),
            hot,
            announcer,
            lease_ttl_s=settings.cluster.lease_ttl_s,
            heartbeat_s=settings.cluster.heartbeat_s,
        )
        lending.membership = membership

        lost = LostTask(hot, LostCopies(client, keys))

        def snapshot() -> WorkerSnapshot:
            return WorkerSnapshot(
                standing=Standing(
                    node=settings.node.name,
                    epoch=membership.epoch,
                    lease_left_s=membership.lease_left_s,
                    heartbeat_age_s=membership.heartbeat_age_s,
                    rejoins=membership.rejoins,
                    connected=membership.connected,
                    peers_alive=len(hot.live_peers),
                ),
                directory=DirectoryFacts(announcer.counters(), announcer.pending_blocks, announcer.differing),
                copies=copies_snapshot(hot.seconds, lost.counters),
                stats=hot.stats(),
                blocks_by_state=hot.blocks_by_state(),
                charged_bytes=hot.charged_bytes,
                timings=hot.timings.copy(),
                engines_refused=dict(local_server.refused),
                moved=hot.moved,
                why=why_snapshot(why),
                journal=hot.journal_snapshot(),
                redis=redis.counters(),
                peers=peers.counters(),
                served=peer_server.counters(),
                plans=hot.plans,
            )

        tenants = TenantsTask(Tenants(client, keys), hot)
        await tenants.look()
        try:
            await membership.join()
        except TierError as error:
            raise ConfigError(f"redis.url: {error}; start Redis or correct the URL", field="redis.url") from None
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


async def _part(
    local_server: LocalServer, hot: HotTier, membership: MembershipTask, drain: DrainTask, drain_s: float
) -> None:
    """Engines first, so that what they asked for is counted; then the last words, while copies are written."""
    await local_server.stop()
    if drain_s > 0 and not membership.parted:
        await drain.empty(timeout_s=drain_s)
    await asyncio.gather(membership.leave(), hot.close(timeout_s=FLUSH_S))


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


def _serve_metrics(settings: Settings, stack: AsyncExitStack, take: Callable[[], WorkerSnapshot]) -> int:
    registry = CollectorRegistry()
    registry.register(WorkerCollector(take))
    node = settings.node
    try:
        server, thread = start_http_server(node.metrics_port, addr=node.metrics_host, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"node.metrics_port: cannot listen on {node.metrics_host}:{node.metrics_port}: {error.strerror}; "
            "choose a free port, or 0 for any",
            field="node.metrics_port",
        ) from None
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    del thread  # ends with the server
    return int(server.server_port)


class _Lending:
    """The hot tier as the peer server's threads see it: each question is answered on the loop."""

    def __init__(self, hot: HotTier, loop: asyncio.AbstractEventLoop) -> None:
        self._hot = hot
        self._loop = loop
        self.membership: MembershipTask | None = None

    def lend(self, hashes: list[BlockHash], *, scope_id: bytes) -> Lent | None:
        return _on_loop(self._loop, lambda: self._hot.lend(hashes, scope_id=scope_id))

    def take_back(self, lent: Lent) -> None:
        _on_loop(self._loop, lambda: self._hot.take_back(lent))

    def epoch(self) -> int:
        return 0 if self.membership is None else self.membership.epoch

    def pool(self) -> BlockPool | None:
        return self._hot.pool

    def explain(self, request: Explain | Recent) -> Explained:
        return _on_loop(self._loop, lambda: self._hot.explain(request))


def _on_loop(loop: asyncio.AbstractEventLoop, decide: Callable[[], T]) -> T:
    """Run a short decision on the loop from another thread. Errors: TierError when the loop does not answer."""
    answer: Future[T] = Future()

    def turn() -> None:
        try:
            answer.set_result(decide())
        except Exception as error:
            answer.set_exception(error)

    try:
        loop.call_soon_threadsafe(turn)
        return answer.result(LOOP_ANSWER_S)
    except RuntimeError:
        raise TierUnavailable("the worker has stopped") from None
    except TimeoutError:
        raise TierTimeout(f"the event loop did not answer within {LOOP_ANSWER_S:g} s") from None
