"""Totals lent under fire: joins, deaths, cuts, late, lost and repeated messages, two leaders, a server that forgets.

Real are the leader's decision, the worker's report and its ledger. The books are those of the scripts, in a dict.
Each message can be a step of its own, so whatever lies between two of them may happen there.

After each step the limits in force of all members sum to no more than the total. What may be above it meanwhile is
kept in ``allowed``: a total that was lowered, or what a life brings back that had been cut off for longer than its
lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.leader.demand import Demands, note
from coordinator.leader.lending import bounds_of
from coordinator.leader.shares import Borrower, Deal, deal
from tiered.cluster.shares import Books, Record, Report
from tiered.core.core import CacheCore, TenantCounters
from tiered.tenancy.ledger import HotLedger
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import Epoch, NodeId, TenantId
from worker.share import report_of, shares_of

RED, BLUE = TenantId("red"), TenantId("blue")
TENANTS = (RED, BLUE)
CAPACITY = 1_000
NODES = tuple(NodeId(f"n{i}") for i in range(4))
ENDLESS = 1 << 40
node_names = st.sampled_from(NODES)
totals = st.one_of(st.none(), st.integers(0, 400))


class Worker:
    """One process; its life in the cluster may end and begin again while it runs."""

    def __init__(self, policies: dict[TenantId, TenantPolicy], revision: int) -> None:
        self.ledger = HotLedger(1)
        self.counters: dict[TenantId, TenantCounters] = {}
        self.shares: dict[TenantId, Any] = {}
        self.epoch = 0
        self.revision = 0
        self.learn(policies, revision)
        self.asked: Report | None = None
        self.answer: Record | None = None

    def learn(self, policies: dict[TenantId, TenantPolicy], revision: int) -> None:
        self.policies, self.policies_revision = policies, revision
        self.ledger.set_policies(policies, self.shares)
        for tenant in TENANTS:
            self.ledger.limit_bytes(tenant)  # as the turn of the core that follows does

    def report(self) -> Report:
        core = SimpleNamespace(ledger=self.ledger, counters=self.counters, options=SimpleNamespace(block_bytes=1))
        return report_of(
            self.policies,
            self.shares,
            cast(CacheCore, core),
            epoch=self.epoch,
            revision=self.revision,
            policies_revision=self.policies_revision,
        )

    def take(self, record: Record) -> None:
        if record.epoch == self.epoch and record.revision > self.revision:
            self.shares, self.revision = shares_of(record), record.revision
            self.learn(self.policies, self.policies_revision)

    def in_force(self, tenant: TenantId) -> int:
        limit = self.ledger.limit_bytes(tenant)
        return ENDLESS if limit is None else limit


@dataclass(frozen=True)
class Write:
    token: int
    books: Books
    lives: dict[NodeId, int]
    made: Deal
    settled: bool


@dataclass
class Reign:
    token: int
    demands: Demands = field(default_factory=dict)


class SharesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.epochs = 0
        self.token = 0
        self.books = Books()
        self.members: dict[NodeId, int] = {}
        self.workers: dict[NodeId, Worker] = {}
        self.writes: list[Write] = []
        self.late: list[tuple[NodeId, Report]] = []
        self.policies: dict[TenantId, TenantPolicy] = {DEFAULT_TENANT: TenantPolicy(tenant=DEFAULT_TENANT)}
        self.policies_revision = 0
        self.allowed = dict.fromkeys(TENANTS, 0)
        self.unheard: set[NodeId] = set()
        """Workers that have not noticed yet that the server forgot them."""
        self.reigns: list[Reign] = []

    @initialize(red=st.integers(0, 400), blue=totals)
    def begin(self, red: int, blue: int | None) -> None:
        self.set_total(RED, red, 0)
        self.set_total(BLUE, blue, 0)
        self.elect()
        for node in NODES[:3]:
            self.start(node)
        self.all_goes_well(turns=6)

    # Lives.

    @rule(node=node_names, fault=st.sampled_from(("start", "lapse_and_retire", "lapse_and_retire", "die", "forget")))
    def fail(self, node: NodeId, fault: str) -> None:
        """One of all faults that are: each alone would leave hardly any step for what lies between them."""
        self.forget() if fault == "forget" else getattr(self, fault)(node)

    def start(self, node: NodeId) -> None:
        """A new process; an older one of the name is dead, or a ghost that nobody hears."""
        self.workers[node] = Worker(self.policies, self.policies_revision)
        self.unheard.discard(node)
        self._join(node)

    def lapse_and_retire(self, node: NodeId) -> None:
        """It was cut off, or stopped, for longer than its lease; it goes on with what it has."""
        self.members.pop(node, None)

    def die(self, node: NodeId) -> None:
        self.workers.pop(node, None)
        self.unheard.discard(node)

    @precondition(lambda self: any(node not in self.members for node in self.workers))
    @rule(data=st.data())
    def rejoin(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from([node for node in self.workers if node not in self.members]))
        if node in self.unheard:
            self.unheard.discard(node)
        else:  # its share may have been lent to others
            for tenant in TENANTS:
                self.allowed[tenant] += self.workers[node].in_force(tenant)
        self._join(node)

    def _join(self, node: NodeId) -> None:
        self.epochs += 1
        self.members[node] = self.workers[node].epoch = self.epochs
        self.workers[node].asked = None

    # What tenants do.

    @rule(node=node_names, tenant=st.sampled_from(TENANTS), n_bytes=st.integers(1, 200))
    def use(self, node: NodeId, tenant: TenantId, n_bytes: int) -> None:
        worker = self.workers.get(node)
        if worker is not None:
            room = min(worker.in_force(tenant), CAPACITY) - worker.ledger.used_bytes(tenant)
            for _ in range(min(n_bytes, max(0, room))):
                worker.ledger.charge(tenant)
            worker.counters.setdefault(tenant, TenantCounters()).wanted += max(0, n_bytes - max(0, room))

    @rule(node=node_names, tenant=st.sampled_from(TENANTS), n_bytes=st.integers(1, 200))
    def evict(self, node: NodeId, tenant: TenantId, n_bytes: int) -> None:
        worker = self.workers.get(node)
        if worker is not None:
            for _ in range(min(n_bytes, worker.ledger.used_bytes(tenant))):
                worker.ledger.release(tenant)

    # Policies.

    @rule(tenant=st.sampled_from(TENANTS), total=totals, reserved=st.integers(0, 400))
    def set_total(self, tenant: TenantId, total: int | None, reserved: int) -> None:
        reserved = min(reserved, ENDLESS if total is None else total)
        policy = TenantPolicy(tenant=tenant, hot_total_limit_bytes=total, hot_total_reserved_bytes=reserved)
        self.policies = self.policies | {tenant: policy}
        self.policies_revision += 1
        self.allowed[tenant] = max(self.allowed[tenant], ENDLESS * len(NODES) if total is None else total)

    @rule(node=node_names)
    def learn(self, node: NodeId) -> None:
        if node in self.workers:
            self.workers[node].learn(self.policies, self.policies_revision)

    # Messages of workers: asked, written and read at the server, taken.

    @rule(node=node_names)
    def ask(self, node: NodeId) -> None:
        worker = self.workers.get(node)
        if worker is not None:
            if worker.asked is not None:
                self.late.append((node, worker.asked))
            worker.asked, worker.answer = worker.report(), None

    @rule(node=node_names)
    def serve(self, node: NodeId) -> None:
        worker = self.workers.get(node)
        if worker is not None and worker.asked is not None and self._hear(node, worker.asked):
            worker.answer, worker.asked = self.books.lent.get(node), None

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def serve_late(self, data: st.DataObject) -> None:
        """The worker has given up waiting for the answer; the server reads the question all the same."""
        self._hear(*self.late.pop(data.draw(st.integers(0, len(self.late) - 1))))

    def _hear(self, node: NodeId, report: Report) -> bool:
        """As share.lua."""
        if self.members.get(node) != report.epoch:
            return False
        self.books = replace(self.books, reports={**self.books.reports, node: report})
        return True

    @rule(node=node_names)
    def take(self, node: NodeId) -> None:
        worker = self.workers.get(node)
        if worker is not None and worker.answer is not None:
            worker.take(worker.answer)
            worker.answer = None

    @rule(turns=st.integers(1, 4))
    def all_goes_well(self, turns: int) -> None:
        for _ in range(turns):
            for node in self.workers:
                self.learn(node)
                self.exchange(node)
            self.lead()

    @rule(node=node_names)
    def exchange(self, node: NodeId) -> None:
        self.ask(node)
        self.serve(node)
        self.take(node)

    @rule(heard=st.lists(node_names, max_size=6), tenant=st.sampled_from(TENANTS))
    def burst(self, heard: list[NodeId], tenant: TenantId) -> None:
        """Those that are heard want much; the others hear nothing of what that costs them."""
        for node in heard:
            self.use(node, tenant, 400)
            self.exchange(node)
            self.lead()

    # Leaders.

    @rule()
    def lead(self) -> None:
        """Decide and write at once."""
        self._decide(self.reigns[-1])
        self._write(self.writes.pop())

    @rule()
    def elect(self) -> None:
        self.token += 1
        self.reigns.append(Reign(self.token))

    @precondition(lambda self: self.reigns)
    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        """Upon what is read now; when it is written is another question. Older leaders think that they lead, too."""
        self._decide(data.draw(st.sampled_from(self.reigns[-2:])))

    def _decide(self, reign: Reign) -> None:
        reign.demands = note(reign.demands, self.books.reports)
        settled = self.books.settled or not self.unheard
        made = deal(
            bounds_of(self.policies, self.books),
            [Borrower(node, Epoch(epoch), CAPACITY) for node, epoch in self.members.items()],
            self.books,
            reign.demands,
            policies=self.policies_revision,
            settled=settled,
        )
        self.writes.append(Write(reign.token, self.books, dict(self.members), made, settled))

    @precondition(lambda self: self.writes)
    @rule(data=st.data(), again=st.booleans())
    def write(self, data: st.DataObject, again: bool) -> None:
        """In any order, perhaps twice."""
        index = data.draw(st.integers(0, len(self.writes) - 1))
        self._write(self.writes[index] if again else self.writes.pop(index))

    def _write(self, late: Write) -> None:
        """As lend.lua."""
        fresh = late.token == self.token and late.books.revision == self.books.revision
        if fresh and late.lives == self.members:
            lent = {n: r for n, r in self.books.lent.items() if n not in late.made.gone} | dict(late.made.changed)
            reports = {n: r for n, r in self.books.reports.items() if n not in late.made.gone or n in self.members}
            self.books = Books(late.made.revision, late.token, late.settled, lent, reports)

    def forget(self) -> None:
        """The server restarts empty. Who was cut off before may come back later than anybody waits for."""
        self.unheard |= self.members.keys() & self.workers.keys()
        self.members = {}
        self.books = Books()
        self.writes = [write for write in self.writes if write.books.revision]
        self.elect()

    # What must hold.

    def members_alive(self) -> list[tuple[NodeId, Worker]]:
        """Also those who have not noticed yet that the server forgot them: what they hold is theirs."""
        return [
            (node, worker)
            for node, worker in self.workers.items()
            if self.members.get(node) == worker.epoch or node in self.unheard
        ]

    @invariant()
    def the_limits_in_force_sum_to_no_more_than_the_total(self) -> None:
        for tenant in TENANTS:
            alive = self.members_alive()
            in_force = sum(worker.in_force(tenant) for _, worker in alive)
            assert in_force <= self.allowed[tenant], (tenant, in_force, self.allowed[tenant])
            total = self.policies[tenant].hot_total_limit_bytes
            if total is not None and sum(self._reach(node, worker, tenant) for node, worker in alive) <= total:
                self.allowed[tenant] = total

    def _reach(self, node: NodeId, worker: Worker, tenant: TenantId) -> int:
        """The most that the worker could have in force with what is written already."""
        reach = worker.in_force(tenant)
        for record in (worker.answer, self.books.lent.get(node)):
            lent = None if record is None else record.tenants.get(tenant)
            if lent is not None and record is not None and record.epoch == worker.epoch:
                reach = max(reach, lent.limit_bytes or 0)
        return max(reach, worker.ledger.used_bytes(tenant))

    @invariant()
    def no_node_keeps_more_than_it_has(self) -> None:
        for record in self.books.lent.values():
            assert sum(lent.reserved_bytes for lent in record.tenants.values()) <= CAPACITY

    def teardown(self) -> None:
        """Once faults end, all is lent, within the total, and stays still."""
        for node in list(self.workers):
            if self.members.get(node) != self.workers[node].epoch:
                self.unheard.discard(node)
                self._join(node)
        self.members = {node: epoch for node, epoch in self.members.items() if node in self.workers}
        self.unheard.clear()
        self.elect()
        for turn in range(140):
            before = self.books.lent
            for node, worker in self.workers.items():
                worker.learn(self.policies, self.policies_revision)
                for tenant in TENANTS:
                    for _ in range(max(0, worker.ledger.used_bytes(tenant) - worker.in_force(tenant))):
                        worker.ledger.release(tenant)
                self.ask(node)
                self.serve(node)
                self.take(node)
            self._decide(self.reigns[-1])
            self._write(self.writes.pop())
            still = turn > 120
            assert not still or self.books.lent == before, "shares wander though nobody wants more"
        for tenant in TENANTS:
            total = self.policies[tenant].hot_total_limit_bytes
            if total is None or not self.workers:
                continue
            in_force = [worker.in_force(tenant) for worker in self.workers.values()]
            assert sum(in_force) <= total
            assert sum(in_force) >= total - total // 16 - 1, "some of the total is lent to nobody"
            assert min(in_force) >= total // (8 * len(in_force)), "a node has no share to begin with"
        promised = {tenant: self.policies[tenant].hot_total_reserved_bytes for tenant in TENANTS}
        if self.workers and sum(promised.values()) <= CAPACITY * len(self.workers):
            for tenant, n_bytes in promised.items():
                parts = [record.tenants[tenant].reserved_bytes for record in self.books.lent.values() if n_bytes]
                total = self.policies[tenant].hot_total_limit_bytes
                assert sum(parts) >= n_bytes - (0 if total is None else total // 16 + len(parts))


SharesMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, suppress_health_check=list(HealthCheck)
)
TestShares = SharesMachine.TestCase
