"""A whole cluster in one process: nodes, coordinators, the shared state, engines, and what befalls them.

Owns who is there and what was changed by hand, and a run's phases: faults under traffic; traffic without faults;
quiet, until all agree; and everything removed, until nothing is left. The rules are :mod:`tests.sim.checks`'.
"""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import count

import msgspec

from tests.sim import checks
from tests.sim.coordinating import Coordinator
from tests.sim.engine import Served, serve
from tests.sim.faults import Faults
from tests.sim.loop import Host, SimLoop, current_host
from tests.sim.network import Network, Weather
from tests.sim.node import LAYOUT, Node
from tests.sim.plan import Plan, Report
from tests.sim.server import SharedState
from tests.sim.services import simulated
from tests.sim.traffic import Ask, Names, Shape, asks
from tests.sim.wires import SimClient
from tiered.cluster.directory import MetaRecord
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.tenants import Tenants
from tiered.config import PoolSettings
from tiered.tenancy.policy import TenantPolicy
from tiered.types import Epoch, NodeId, TenantId

BLOCK_BYTES = LAYOUT.block_bytes
VALUE_BYTES = 192 + BLOCK_BYTES

SAMPLES_PER_LOOK = 5

ENGINES_S = 120.0
"""By then every request has ended: whatever one waits for is bounded (I9)."""

CROWD_S = 6
CROWD_PART = 0.6

_RECORD = msgspec.msgpack.Decoder(MetaRecord)


class SimulationError(AssertionError):
    """A rule did not hold; the message ends with what happened last."""


class Cluster:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(f"{plan.seed}/cluster")
        self.loop = SimLoop()
        self.network = Network(self.loop, random.Random(f"{plan.seed}/network"))
        self.network.byte_s = plan.byte_s
        self.shared = SharedState(self.loop.time, page=plan.page)
        self.keys = Keys("sim", partitions=plan.partitions)
        self.client = SimClient(self.network, self.shared, timeout_s=1.0)
        self.nodes: dict[str, Node] = {}
        """The latest process of each name; other ones may run beside it."""
        self.others: list[Node] = []
        self.coordinators: dict[str, Coordinator] = {}
        self.names = Names()
        self.served = Served()
        self.log: deque[str] = deque(maxlen=400)
        self.engines: set[asyncio.Future[None]] = set()
        self.n_processes = 0
        self.born: list[Node] = []
        self.pool = PoolSettings(
            bytes=plan.pool_blocks * BLOCK_BYTES, policy=plan.policy, demote=plan.demote, match_lease_s=10.0
        )
        # What the checks remember.
        self.epochs: dict[Epoch, Node] = {}
        self.forgotten_epoch = self.forgotten_token = 0
        """The last ones that a server gave and then forgot."""
        self.lent_under = 0
        self.tenants: list[TenantId] = []
        self.totals: dict[TenantId, int] = {}
        self.over: set[TenantId] = set()
        """Those of whom more may be in force than the total, for a reason that there was."""
        self.redis_limits: set[str] = set()
        self.owing: set[tuple[int, str]] = set()
        """Partition and tenant: a server that had forgotten their limits took more than those."""

    # Who is there.

    def running(self) -> list[Node]:
        """Nodes that run now and have been there long enough to serve."""
        return [node for node in (*self.nodes.values(), *self.others) if node.is_ready and not node.host.frozen]

    def note(self, what: str) -> None:
        self.log.append(f"{self.loop.time():9.3f}  {what}")

    def start_node(self, name: str, *, beside: bool = False) -> Node:
        self.n_processes += 1
        host = Host(f"{name}@{self.n_processes}", skew_s=self.rng.uniform(0.0, 1e5))
        with self.loop.being(host):
            node = Node(
                self.loop,
                self.network,
                self.shared,
                host,
                name=NodeId(name),
                keys=self.keys,
                pool=self.pool,
                pace=self.plan.pace,
                instance=str(self.n_processes),
            )
        self.born.append(node)
        if beside:
            self.others.append(node)
        else:
            self.nodes[name] = node
        self.loop.spawn(host, node.run())
        self.note(f"{host.name} starts")
        return node

    def start_coordinator(self, name: str) -> Coordinator:
        self.n_processes += 1
        host = Host(f"{name}@{self.n_processes}", skew_s=self.rng.uniform(0.0, 1e5))
        with self.loop.being(host):
            coordinator = Coordinator(
                self.network,
                self.shared,
                host,
                keys=self.keys,
                interval_s=self.plan.rounds_s,
                lease_s=self.plan.pace.lease_s,
                audits=self.plan.audits,
            )
        self.coordinators[name] = coordinator
        self.loop.spawn(host, coordinator.run())
        self.note(f"{host.name} starts")
        return coordinator

    def kill(self, host: Host) -> None:
        self.note(f"{host.name} is killed")
        self.loop.kill(host)
        self.network.hang_up(host)

    def restart_shared(self) -> None:
        self.note("the shared state restarts empty")
        self.forgotten_epoch = int(self.shared.store.do([b"GET", self.keys.epochs()]) or 0)
        self.forgotten_token = int(self.shared.store.do([b"GET", self.keys.leader_tokens()]) or 0)
        self.shared.restart_empty()
        self.lent_under = 0
        self.owing = {(part, name) for part in range(self.keys.partitions) for name in self.redis_limits}

    def set_policy(self, tenant: str, **bounds: object) -> None:
        policy = TenantPolicy.model_validate({"tenant": tenant, **bounds})
        tenants = Tenants(self.client, self.keys)
        assert tenants.create(policy) or tenants.replace(policy)
        name = TenantId(tenant)
        if name not in self.tenants:
            self.tenants.append(name)
        if policy.redis_limit_bytes is not None:
            self.redis_limits.add(tenant)

    @staticmethod
    def record(packed: bytes) -> tuple[int, int, list[str]]:
        record = _RECORD.decode(packed)
        return record.state, record.size, record.tenants

    # One run.

    def run(self) -> Report:
        """Errors: SimulationError, with what happened last."""
        handler = _Noting(self)
        root = logging.getLogger()
        handlers, root.handlers = root.handlers, [handler]
        report = Report(self.plan.seed)
        try:
            with simulated(self.loop, self.network, self.shared, idle_s=self.plan.idle_s):
                self.loop.run_until_complete(self._phases(report))
        except AssertionError as error:
            raise SimulationError(f"seed {self.plan.seed}: {error}\n" + "\n".join(self.log)) from error
        finally:
            root.handlers = handlers
            self._end()
        report.requests = self.served.requests
        report.questions, report.lost = self.network.asked, self.network.lost
        report.simulated_s = round(self.loop.time(), 1)
        self._count(report)
        return report

    def _count(self, report: Report) -> None:
        sources: Counter[str] = Counter()
        fetched: Counter[str] = Counter()
        for node in self.born:
            counters = node.peers.counters()
            fetched.update(counters.misses)
            fetched["good"] += counters.blocks
            report.repairs += node.announcer.counters().repairs
            report.rejoins += node.membership.rejoins
            for of in node.hot.stats().tenants.values():
                sources.update({name: getattr(of.tokens, name) for name in ("hot", "peer", "redis", "missed")})
        report.sources, report.fetched = dict(sources), dict(fetched)

    async def _phases(self, report: Report) -> None:
        plan = self.plan
        self._set_policies()
        for n in range(plan.n_coordinators):
            self.start_coordinator(f"c{n}")
        for n in range(plan.n_nodes):
            self.start_node(f"w{n}")
        await self._until(lambda: len(self.running()) == plan.n_nodes, within_s=60.0, what="all nodes are ready")
        traffic = asyncio.ensure_future(self._traffic(plan.faults_s + plan.calm_s))
        sampler = asyncio.ensure_future(self._sample())
        sampler.add_done_callback(self._ended)
        faults = Faults(self, random.Random(f"{plan.seed}/faults"))
        await faults.run(plan.faults_s, plan.n_faults)
        report.faults = dict(faults.begun)
        await traffic
        report.hot_blocks = sum(len(node.hot.core.index) for node in self.running())
        began = self.loop.time()
        await self._until(
            lambda: not checks.differences(self),
            within_s=plan.settle_s,
            what="all agree",
            every_s=5.0,
            why=self._differences,
        )
        report.settled_s = round(self.loop.time() - began, 1)
        checks.check_conserved(self)
        await self._remove_everything()
        sampler.cancel()

    def _set_policies(self) -> None:
        total = self.plan.pool_blocks * BLOCK_BYTES * self.plan.n_nodes
        self.set_policy("red")
        self.set_policy("blue", hot_total_limit_bytes=total // 6, hot_total_reserved_bytes=total // 24)
        self.set_policy("green", sharing="group:friends", hot_limit_bytes=total // self.plan.n_nodes // 2)
        if self.plan.demote == "never" and self.plan.trace is not None:
            self.set_policy("teal", sharing="group:friends")
            return
        self.set_policy("teal", sharing="group:friends", redis_limit_bytes=40 * VALUE_BYTES, copies=2)
        Tenants(self.client, self.keys).set_capacity(self.plan.pool_blocks * VALUE_BYTES)

    async def _traffic(self, span_s: float) -> None:
        rng = random.Random(f"{self.plan.seed}/traffic")
        began, trace, tenants = self.loop.time(), self.plan.trace, [*self.tenants, TenantId("blue")]
        shape = Shape(self.plan.conversations, span_s)
        for ask in asks(rng, tenants, shape) if trace is None else trace.asks(tenants):
            await asyncio.sleep(max(0.0, began + ask.at_s - self.loop.time()))
            if nodes := self.running():
                # A conversation stays with its node; else a tenant's requests come in crowds, now here, now there.
                home = ask.home or f"{ask.tenant}/{int(ask.at_s) // CROWD_S}"
                favourite = nodes[zlib.crc32(home.encode()) % len(nodes)]
                self.ask(favourite if rng.random() < CROWD_PART else rng.choice(nodes), ask)
        await self._until(lambda: not self.engines, within_s=ENGINES_S, what="every request has ended", every_s=0.5)

    def ask(self, node: Node, ask: Ask) -> None:
        task = self.loop.spawn(node.host, serve(node, ask, self.names, self.rng, self.served, self.plan.engine))
        self.engines.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self.engines.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.failures.append("".join(traceback.format_exception(error)))

    async def _sample(self) -> None:
        for n in count():
            await asyncio.sleep(self.plan.sample_s)
            try:
                self.check(everything=n % SAMPLES_PER_LOOK == 0)
            except AssertionError as error:
                self.loop.failures.append(str(error))

    def check(self, *, everything: bool) -> None:
        """All that must hold at any moment; or what is quickly looked at."""
        checks.check_fences(self)
        checks.check_leaders(self)
        checks.check_limits(self)
        if everything:
            if self.plan.audits:
                checks.check_books(self)
            checks.check_bytes(self)
            running = self.running()
            for node in running:
                checks.check_bounds(node)
            if running:
                checks.check_node(self.rng.choice(running))

    def require_no_failures(self) -> None:
        if self.loop.failures:
            raise AssertionError(self.loop.failures[0])

    def _differences(self) -> str:
        found = checks.differences(self)
        return f"{len(found)} differences: " + "; ".join(found[:5])

    async def _remove_everything(self) -> None:
        for node in self.running():
            await self.loop.spawn(node.host, node.leave())
            self.kill(node.host)
        for tenant in self.tenants:
            RedisLedger(self.client, self.keys).clear(tenant)
        await self._until(
            lambda: not checks.remains(self),
            within_s=self.plan.empty_s,
            what="nothing is left",
            every_s=2.0,
            why=lambda: str(checks.remains(self)[:5]),
        )

    async def _until(
        self,
        condition: Callable[[], bool],
        *,
        within_s: float,
        what: str,
        every_s: float = 0.1,
        why: Callable[[], str] = lambda: "",
    ) -> None:
        ends_at = self.loop.time() + within_s
        while not condition():
            self.require_no_failures()
            assert self.loop.time() < ends_at, f"not within {within_s:g} s: {what} {why()}"
            await asyncio.sleep(every_s)

    def calm(self) -> None:
        self.network.heal()
        self.network.weather = Weather()

    def _end(self) -> None:
        for process in (*self._hosts(),):
            self.loop.kill(process)
        self.loop.run_until_complete(asyncio.sleep(1.0))
        for node in self.born:
            if node.hot.pool is not None:
                node.hot.pool.close()
        self.loop.close()

    def _hosts(self) -> Iterator[Host]:
        for node in self.born:
            yield node.host
        for coordinator in self.coordinators.values():
            yield coordinator.host


class _Noting(logging.Handler):
    """What the services say goes into the run's own log."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        host = current_host()
        self._cluster.note(f"{'' if host is None else host.name}: {record.getMessage()}")
