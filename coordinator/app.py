"""The one place that knows every part of the coordinator: builds, starts, and stops in reverse."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Final

from fastapi import FastAPI

from coordinator.dashboard.mount import mount_dashboard
from coordinator.leader.audit import AuditTask
from coordinator.leader.clear import ClearTask
from coordinator.leader.deal import DealTask
from coordinator.leader.leading import Leading
from coordinator.leader.lending import LendTask
from coordinator.leader.remember import RememberTask
from coordinator.leader.rounds import every
from coordinator.leader.runner import Sweeper
from coordinator.leader.seconds import Seconds
from coordinator.leader.stock import StockTask
from coordinator.server.api import build_api
from coordinator.server.credentials import Credentials
from coordinator.server.http import HttpServer
from coordinator.server.known_tokens import FRESH_S, KnownTokens
from coordinator.server.services import Services
from coordinator.server.tls import tls_context
from coordinator.settings import Settings
from coordinator.view.explainer import Explainer
from coordinator.view.follower import Follower
from coordinator.view.history import History
from coordinator.view.keeper import ViewKeeper
from coordinator.view.mirror import Mirror
from coordinator.view.nodes_client import NodesClient
from coordinator.view.reader import ClusterReader
from tiered.clock import SystemClock
from tiered.cluster.access import AccessTokens
from tiered.cluster.agreement import keys_of, require_agreement
from tiered.cluster.allotments import Allotments
from tiered.cluster.audit import Auditor
from tiered.cluster.birth import Births
from tiered.cluster.census import Census
from tiered.cluster.changes import Changes
from tiered.cluster.clears import Clears
from tiered.cluster.connection import Client, connect, require_reachable
from tiered.cluster.directory import Directory
from tiered.cluster.drains import Drains
from tiered.cluster.leadership import Leadership
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.membership import Membership
from tiered.cluster.replicas import Replicas
from tiered.cluster.shares import Shares
from tiered.cluster.tenants import Tenants
from tiered.cluster.why import BooksWhy
from tiered.listening import advertised_url_of, listen, url_of
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
        shares = Shares(client, keys)
        reader = ClusterReader(membership=membership, ledger=ledger, tenants=tenants, shares=shares)
        self._settings = settings
        history = History()
        self.keeper = ViewKeeper(reader.read, SystemClock(), told=history.note)
        replicas = Replicas(client, keys, SystemClock(), timeout_s=settings.redis.control_timeout_s)
        self.sweeper = Sweeper(
            membership=membership, directory=Directory(client, keys), asked=Seconds(tenants, replicas).asked
        )
        self.audit = AuditTask(Auditor(client, keys), tenants)
        cluster = settings.cluster
        self.leading = Leading(Leadership(client, keys), SystemClock(), cluster.leader_lease_s)
        lend = LendTask(
            shares, membership, tenants, self.leading.token, SystemClock(), settle_s=cluster.share_settle_s
        )
        clears = Clears(client, keys)
        self.led_rounds: Mapping[str, tuple[float, Callable[[], None]]] = {
            "sweep": (cluster.sweep_interval_s, self.sweeper.round),
            "audit": (cluster.sweep_interval_s, self.audit.round),
            "deal": (cluster.sweep_interval_s, DealTask(Allotments(client, keys)).round),
            "clears": (cluster.sweep_interval_s, ClearTask(clears, SystemClock()).round),
            "shares": (cluster.share_interval_s, lend.round),
        }
        """The leader's work. A round that was begun may end after its reign: what it writes late does no harm."""
        self.remember = RememberTask(tenants, Births(client, keys), leads=self.leading.leads)
        self.stock = StockTask(tenants=tenants, membership=membership, shares=shares)
        tokens = AccessTokens(client, keys)
        self.credentials = Credentials(
            admin_token=settings.http.admin_token,
            read_token=settings.http.read_token,
            tokens=tokens,
            known=KnownTokens(tokens, SystemClock()),
        )
        self.follower = Follower(
            Changes(client, keys),
            Census(client, keys),
            Mirror(keys.partitions),
            lambda: self.keeper.view,
            SystemClock(),
        )
        self.explainer = Explainer(NodesClient(settings.cluster.secret), BooksWhy(client, keys))
        services = Services(
            self.keeper,
            tenants,
            self.credentials,
            ledger,
            Drains(client, keys),
            clears,
            lambda: self.audit.last,
            quiet_findings=lambda: self.audit.last_quiet,
            lost_nodes=lambda: self.sweeper.lost,
            explainer=self.explainer,
            history=history,
            mirror=self.follower.mirror,
            mirror_facts=lambda: self.follower.facts,
            standing=self.leading.standing,
            stock=lambda: self.stock.taken,
        )
        self.api: FastAPI = build_api(services)

    async def serve(
        self, listener: socket.socket, *, on_ready: Callable[[], None], tls: ssl.SSLContext | None = None
    ) -> None:
        """Run until SIGTERM or SIGINT. The last thing to start is the first to stop: the HTTP server."""
        mount_dashboard(self.api)
        await asyncio.to_thread(self.keeper.refresh)
        stop = asyncio.Event()
        server = HttpServer(self.api, on_ready=on_ready, tls=tls)
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, server.stop)
        cluster = self._settings.cluster
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(every(FRESH_S, self.credentials.known.refresh, what="tokens", stop=stop))
                tasks.create_task(self.keeper.run(stop, interval_s=cluster.snapshot_interval_s))
                tasks.create_task(self.follower.run(stop))
                interval_s = cluster.sweep_interval_s
                tasks.create_task(every(interval_s, self.remember.round, what="policies", stop=stop))
                tasks.create_task(every(interval_s, self.stock.round, what="stock", stop=stop, may=self.stock.is_due))
                tasks.create_task(self.leading.run(stop))
                for what, (led_interval_s, round_) in self.led_rounds.items():
                    tasks.create_task(every(led_interval_s, round_, what=what, stop=stop, may=self.leading.leads))
                try:
                    await server.serve([listener])
                finally:
                    stop.set()
        finally:
            self.explainer.close()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


def run(settings: Settings, *, on_ready: Callable[[str], None]) -> None:
    """Take the port, reach Redis, serve; on_ready gets our URL once requests are accepted.

    Errors: ConfigError when the port is taken or Redis cannot be reached; nothing was started then.
    """
    tls = tls_context(settings.http)
    with listen(settings.http.host, settings.http.port, group="http") as listener:
        client = connect(settings.redis, timeout_s=settings.redis.control_timeout_s)
        try:
            require_reachable(client, settings.redis)
            require_agreement(client, settings.redis)
            url = url_of(listener, tls=tls)
            coordinator = Coordinator(settings, client)
            coordinator.leading.url = advertised_url_of(listener, settings.http.advertise_host, tls=tls)
            asyncio.run(coordinator.serve(listener, on_ready=lambda: on_ready(url), tls=tls))
        finally:
            client.close()
    log.info("coordinator stopped")
