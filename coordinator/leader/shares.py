"""How the tenants' totals are lent to the nodes: a decision over the books, the members and what they want.

A share takes effect when its worker has taken it, which nobody can time. So each life counts with its *ceiling*, the
most that it may have in force: the highest share since the one it confirmed last, or what it says it holds if that
is more. What :mod:`coordinator.leader.limits` does with the ceilings keeps, whatever is late or lost, the sum of the
limits in force of all members within the total. It is above only while a life brings back what it kept when it was
cut off for longer than its lease, or while a total that was lowered has not reached everyone; nobody is raised then.

Nobody at all is raised while a member is *silent*: it has not said what it holds under the policies of this moment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coordinator.leader.demand import Demands
from coordinator.leader.limits import FLOOR_PARTS, Standing, lend
from coordinator.leader.reservations import Lender, place
from tiered.cluster.shares import Books, Held, Lent, Record
from tiered.types import Epoch, NodeId, TenantId


@dataclass(frozen=True, slots=True)
class Borrower:
    """A registered life. kept_bytes: of its capacity, what reservations per node keep of it."""

    node: NodeId
    epoch: Epoch
    capacity_bytes: int
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """One tenant's totals. node_limit_bytes: more than that is of no use to it on any one node.

    everywhere: it is lent a share on every node, as is due to a tenant with a name; others where they were seen.
    """

    tenant: TenantId
    limit_bytes: int | None
    reserved_bytes: int = 0
    node_limit_bytes: int | None = None
    everywhere: bool = True


@dataclass(frozen=True, slots=True)
class Deal:
    """What is to be written. reserved: per tenant, what its parts sum to. silent: who keeps all from being raised."""

    revision: int
    changed: Mapping[NodeId, Record]
    gone: frozenset[NodeId]
    reserved: Mapping[TenantId, int]
    silent: tuple[NodeId, ...]


def deal(
    bounds: Sequence[Bound],
    borrowers: Sequence[Borrower],
    books: Books,
    demands: Demands,
    *,
    policies: int,
    settled: bool = True,
    untouched: Collection[str] = (),
) -> Deal:
    """policies: their revision. untouched: tenants whose policies cannot be read; what they were lent stays.

    settled: False while workers may not have noticed yet that the books were lost.
    """
    borrowers = sorted(borrowers, key=lambda borrower: borrower.node)
    silent = tuple(b.node for b in borrowers if not _speaks(b, books, policies))
    may_raise = settled and not silent
    standings = {bound.tenant: [_standing(bound, b, books, demands, policies) for b in borrowers] for bound in bounds}
    limits: dict[TenantId, list[int | None]] = {}
    for bound in bounds:
        if bound.limit_bytes is None:
            limits[bound.tenant] = [None] * len(borrowers)
        else:
            limits[bound.tenant] = list(
                lend(bound.limit_bytes, standings[bound.tenant], everywhere=bound.everywhere, may_raise=may_raise)
            )
    reserved = place(
        [_lender(bound, standings[bound.tenant], limits[bound.tenant], borrowers, books) for bound in bounds],
        [max(0, b.capacity_bytes - b.kept_bytes) for b in borrowers],
    )
    revision = max([books.revision, *(report.revision for report in books.reports.values())]) + 1
    changed: dict[NodeId, Record] = {}
    emptied: set[NodeId] = set()
    for index, borrower in enumerate(borrowers):
        old = _record_of(borrower, books)
        if borrower.node in books.unreadable or (old is None and borrower.node in silent):
            continue
        tenants = {name: lent for name, lent in (old.tenants if old else {}).items() if name in untouched}
        for bound in bounds:
            limit, part = limits[bound.tenant][index], reserved[bound.tenant][index]
            ceiling = max(standings[bound.tenant][index].ceiling_bytes, limit or 0)
            if bound.everywhere or limit or part or ceiling:
                tenants[bound.tenant] = Lent(limit, part, 0 if limit is None else ceiling)
        if not tenants:
            emptied |= {borrower.node} & books.lent.keys()
        elif old is None or _terms(tenants) != _terms(old.tenants):
            changed[borrower.node] = Record(borrower.epoch, revision, tenants)
    listed = {b.node for b in borrowers}
    ended = (books.lent.keys() | books.reports.keys()) - listed
    return Deal(
        revision=revision,
        changed=changed,
        gone=frozenset(ended | emptied),
        reserved={bound.tenant: sum(reserved[bound.tenant]) for bound in bounds},
        silent=silent,
    )


def _speaks(borrower: Borrower, books: Books, policies: int) -> bool:
    report = books.reports.get(borrower.node)
    return (
        report is not None
        and report.epoch == borrower.epoch
        and report.policies == policies
        and borrower.node not in books.unreadable
    )


def _record_of(borrower: Borrower, books: Books) -> Record | None:
    record = books.lent.get(borrower.node)
    return record if record is not None and record.epoch == borrower.epoch else None


def _standing(bound: Bound, borrower: Borrower, books: Books, demands: Demands, policies: int) -> Standing:
    record, report = _record_of(borrower, books), books.reports.get(borrower.node)
    speaks = _speaks(borrower, books, policies)
    if report is not None and report.epoch != borrower.epoch:
        report = None
    held = Held(0) if report is None else report.tenants.get(bound.tenant, Held(0))
    lent = None if record is None else record.tenants.get(bound.tenant)
    demand = demands.get((borrower.node, borrower.epoch, bound.tenant))
    cap = borrower.capacity_bytes
    if bound.node_limit_bytes is not None:
        cap = min(cap, bound.node_limit_bytes)
    took_last = speaks and report is not None and (record is None or report.revision == record.revision)
    if lent is None or lent.limit_bytes is None:  # what is in force it was not lent: the bound, or its life, is new
        share, ceiling = held.held_bytes, held.held_bytes
    elif took_last:
        share, ceiling = lent.limit_bytes, max(lent.limit_bytes, held.held_bytes)
    else:
        share, ceiling = lent.limit_bytes, max(lent.limit_bytes, lent.ceiling_bytes, held.held_bytes)
    return Standing(
        share_bytes=share,
        ceiling_bytes=ceiling,
        used_bytes=held.used_bytes,
        wanted_bytes=0 if demand is None else demand.recent_bytes,
        cap_bytes=cap,
        is_known=took_last,
    )


def _lender(
    bound: Bound,
    standings: Sequence[Standing],
    limits: Sequence[int | None],
    borrowers: Sequence[Borrower],
    books: Books,
) -> Lender:
    """How the tenant would have its reservation placed: where its limit lies, else where it is used."""
    floor = max(1, bound.reserved_bytes // (FLOOR_PARTS * max(1, len(borrowers))))
    weights, caps, before = [], [], []
    for borrower, standing, limit in zip(borrowers, standings, limits, strict=True):
        record = _record_of(borrower, books)
        lent = None if record is None else record.tenants.get(bound.tenant)
        before.append(0 if lent is None else lent.reserved_bytes)
        weights.append(standing.used_bytes + standing.wanted_bytes + floor if limit is None else limit)
        caps.append(borrower.capacity_bytes if limit is None else limit)
        if record is None and not standing.is_known:  # nothing is written for it yet
            caps[-1] = 0
    return Lender(bound.tenant, bound.reserved_bytes, tuple(weights), tuple(caps), tuple(before))


def _terms(tenants: Mapping[str, Lent]) -> dict[str, tuple[int | None, int]]:
    return {name: (lent.limit_bytes, lent.reserved_bytes) for name, lent in tenants.items()}
