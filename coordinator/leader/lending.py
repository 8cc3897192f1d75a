"""Reads the books of shares, has :mod:`coordinator.leader.shares` decide, and writes that under the leader's token.

Owns what the leader remembers between two rounds: what was wanted lately, since when books that were lost are open
again, and what the log has been told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from coordinator.leader.demand import Demands, note
from coordinator.leader.shares import Borrower, Bound, Deal, deal
from tiered.clock import Clock
from tiered.cluster.membership import Membership
from tiered.cluster.shares import Books, LendAnswer, Shares
from tiered.cluster.tenants import Tenants
from tiered.log import get_logger
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import NodeId, NodeView, TenantId

log = get_logger(__name__)


@dataclass(slots=True)
class LendTask:
    """settle_s: how long a worker may take to notice that the server has lost the books, and to say what it holds."""

    shares: Shares
    membership: Membership
    tenants: Tenants
    token: Callable[[], int]
    clock: Clock
    settle_s: float
    _demands: Demands = field(default_factory=dict)
    _settled_at: float | None = None
    _scaled: Mapping[TenantId, int] = field(default_factory=dict)
    """Reservations that are in force in part, as the log was told."""
    _silent: tuple[NodeId, ...] = ()

    def round(self) -> None:
        """One decision, blocking. Errors: UNREADABLE. Nothing is done unless we lead."""
        token = self.token()
        if not token:
            return
        policies, unreadable = self.tenants.readable()  # before the revision: it is then of these, or of later ones
        revision = self.tenants.revision()
        nodes = self.membership.nodes()
        books = self.shares.books()
        self._demands = note(self._demands, books.reports)
        settled = self._settles(books)
        made = deal(
            bounds_of(policies, books, but=unreadable),
            borrowers_of(nodes, policies.values()),
            books,
            self._demands,
            policies=revision,
            settled=settled,
            untouched=unreadable,
        )
        if made.changed or made.gone or settled != books.settled or token != books.token:
            self._write(made, books, nodes, token=token, settled=settled)
        self._report(made, policies)

    def _settles(self, books: Books) -> bool:
        """Books that are new, or that a server lost, say nothing of what workers have in force: nobody is raised
        until all have had the time to say it. A reign that begins meanwhile waits anew."""
        if books.settled:
            self._settled_at = None
            return True
        now = self.clock.now()
        if self._settled_at is None:
            self._settled_at = now + self.settle_s
        return now >= self._settled_at

    def _write(self, made: Deal, books: Books, nodes: Iterable[NodeView], *, token: int, settled: bool) -> None:
        answer = self.shares.lend(
            token=token,
            read=books.revision,
            revision=made.revision,
            settled=settled,
            lives=[(NodeId(node.info.node), node.epoch) for node in nodes],
            changed=made.changed,
            gone=made.gone,
        )
        if answer is LendAnswer.FENCED:
            log.warning("shares not written: another coordinator leads", token=token)
        elif answer is LendAnswer.CHANGED:
            log.debug("shares not written: the books or the members have changed meanwhile")
        elif made.changed:
            log.debug("shares written", revision=made.revision, nodes=sorted(made.changed))

    def _report(self, made: Deal, policies: Mapping[TenantId, TenantPolicy]) -> None:
        promises = {tenant: policy.hot_total_reserved_bytes for tenant, policy in policies.items()}
        scaled = {tenant: n for tenant, n in made.reserved.items() if n < promises.get(tenant, 0)}
        for tenant, in_force in scaled.items():
            if self._scaled.get(tenant) != in_force:
                promised = promises[tenant]
                log.warning(
                    "a reservation is in force in part",
                    tenant=tenant,
                    reserved_bytes=promised,
                    in_force_bytes=in_force,
                )
        for tenant in self._scaled.keys() - scaled.keys():
            log.info("a reservation is in force again", tenant=tenant)
        self._scaled = scaled
        if made.silent and made.silent == self._silent:
            log.debug("no share is raised until these nodes say what they hold", nodes=list(made.silent))
        self._silent = made.silent


def bounds_of(policies: Mapping[TenantId, TenantPolicy], books: Books, *, but: Iterable[str] = ()) -> list[Bound]:
    """The totals of those that have a policy, and of those seen that live under the default's, each by itself."""
    bounds = [
        _bound(tenant, policy, everywhere=tenant != DEFAULT_TENANT)
        for tenant, policy in sorted(policies.items())
        if policy.has_total
    ]
    default = policies[DEFAULT_TENANT]
    if default.hot_total_limit_bytes is not None:
        seen = {tenant for report in books.reports.values() for tenant in report.tenants}
        unnamed = sorted(seen - policies.keys() - set(but))
        bounds += [_bound(TenantId(t), default.of_unnamed(TenantId(t)), everywhere=False) for t in unnamed]
    return bounds


def borrowers_of(nodes: Iterable[NodeView], policies: Iterable[TenantPolicy]) -> list[Borrower]:
    """All registered lives, those whose lease has lapsed too: until they are retired, their shares are theirs."""
    promised = [(policy.hot_reserved_bytes, policy.hot_reserved_blocks) for policy in policies]
    return [
        Borrower(
            node=NodeId(node.info.node),
            epoch=node.epoch,
            capacity_bytes=node.info.capacity_bytes,
            kept_bytes=sum(max(n_bytes, n_blocks * node.stats.block_bytes) for n_bytes, n_blocks in promised),
        )
        for node in nodes
    ]


def _bound(tenant: TenantId, policy: TenantPolicy, *, everywhere: bool) -> Bound:
    return Bound(
        tenant=tenant,
        limit_bytes=policy.hot_total_limit_bytes,
        reserved_bytes=policy.hot_total_reserved_bytes,
        node_limit_bytes=policy.hot_limit_bytes,
        everywhere=everywhere,
    )
