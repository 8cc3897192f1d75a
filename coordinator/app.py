"""The one place that knows every part of the coordinator: builds, starts, and stops in reverse."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Final

from fastapi import FastAPI

from coordinator.dashboard.mount import mount_dashboard
from coordinator.leader.audit import AuditTask
from coordinator.leader.deal import DealTask
from coordinator.leader.remember import RememberTask
from coordinator.leader.rounds import every
from coordinator.leader.runner import Sweeper
from coordinator.server.api import build_api
from coordinator.server.http import HttpServer, listen, url_of
from coordinator.server.services import Services
from coordinator.settings import Settings
from coordinator.view.keeper import ViewKeeper
from coordinator.view.reader import ClusterReader
from tiered.clock import SystemClock
from tiered.cluster.agreement import keys_of, require_agreement
from tiered.cluster.allotments import Allotments
from tiered.cluster.audit import Auditor
from tiered.cluster.connection import Client, connect, require_reachable
from tiered.cluster.directory import Directory
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.membership import Membership
from tiered.cluster.tenants import Tenants
from tiered.log import get_logger

log = get_logger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Coordinator:
    """All parts over one Redis client, built and not yet running."""

    def __init__(self, settings: Settings, client: Client) -> None:
        keys = keys_of(settings.redis)
        membership = Membership(client, keys)
        tenants = Tenants(client, keys)
        ledger = RedisLedger(client, keys)
        reader = ClusterReader(membership=membership, ledger=ledger, tenants=tenants)
        self._settings = settings
        self.keeper = ViewKeeper(reader.read, SystemClock())
        self.sweeper = Sweeper(membership=membership, directory=Directory(client, keys))
        self.audit = AuditTask(Auditor(client, keys), tenants)
        self.rounds: Mapping[str, Callable[[], None]] = {
            "sweep": self.sweeper.round,
            "audit": self.audit.round,
            "deal": DealTask(Allotments(client, keys)).round,
            "policies": RememberTask(tenants).round,
        }
        """The periodic work; each replica does it, and twice does no harm."""
        services = Services(self.keeper, tenants, settings.http.admin_token, ledger, lambda: self.audit.last)
        self.api: FastAPI = build_api(services)

    async def serve(self, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
        """Run until SIGTERM or SIGINT. The last thing to start is the first to stop: the HTTP server."""
        mount_dashboard(self.api, self.keeper)
        await asyncio.to_thread(self.keeper.refresh)
        stop = asyncio.Event()
        server = HttpServer(self.api, on_ready=on_ready)
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, server.stop)
        cluster = self._settings.cluster
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.keeper.run(stop, interval_s=cluster.snapshot_interval_s))
                for what, round_ in self.rounds.items():
                    tasks.create_task(every(cluster.sweep_interval_s, round_, what=what, stop=stop))
                try:
                    await server.serve([listener])
                finally:
                    stop.set()
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


def run(settings: Settings, *, on_ready: Callable[[str], None]) -> None:
    """Take the port, reach Redis, serve; on_ready gets our URL once requests are accepted.

    Errors: ConfigError when the port is taken or Redis cannot be reached; nothing was started then.
    """
    with listen(settings.http) as listener:
        client = connect(settings.redis, timeout_s=settings.redis.control_timeout_s)
        try:
            require_reachable(client, settings.redis)
            require_agreement(client, settings.redis)
            url = url_of(listener)
            asyncio.run(Coordinator(settings, client).serve(listener, on_ready=lambda: on_ready(url)))
        finally:
            client.close()
    log.info("coordinator stopped")
