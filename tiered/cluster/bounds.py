"""How the tenants' bounds are dealt to the partitions, so that what these have between them is never more.

Plain decisions over what was read; who reads, writes and repeats is :mod:`tiered.cluster.allotments`' business. What
a partition has of a limit is its allotment. The words of the limits hash are those of ``Keys.limits``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import TenantId

CAPACITY: Final = ":capacity"
DEAL: Final = ":deal"
DEFAULT: Final = "*"


@dataclass(frozen=True, slots=True)
class PartitionBooks:
    """What was read of one partition: its limits hash, and what each tenant, and ``:capacity`` all, hold there."""

    limits: Mapping[str, str]
    held: Mapping[str, int]

    def allotment(self, name: str) -> int | None:
        """None: unbounded."""
        value = self.limits.get(name)
        if value is None and name != CAPACITY:
            value = self.limits.get(DEFAULT)
        return None if value is None else int(value)

    def unused(self, name: str) -> int:
        allotment = self.allotment(name)
        return 0 if allotment is None else max(0, allotment - self.held.get(name, 0))


@dataclass(frozen=True, slots=True)
class Deal:
    """limits: of each bound the bytes for each partition. owed: bounds below what is held. other: what else each
    partition's limits hash holds."""

    limits: dict[str, list[int]] = field(default_factory=dict)
    owed: set[str] = field(default_factory=set)
    other: list[dict[str, str]] = field(default_factory=list)


def even(total: int, n: int) -> list[int]:
    """Equal parts, to the byte."""
    return [total // n + (i < total % n) for i in range(n)]


def fitted(total: int, held: Sequence[int]) -> list[int]:
    """Parts that add up to the total: to each what it holds, and of the rest an equal part.

    Where more is held than the total allows, each gets less in proportion: it then owes, and takes nothing new.
    """
    n, held_sum = len(held), sum(held)
    if held_sum > total:
        parts = [total * h // held_sum for h in held]
        rest = total - sum(parts)
    else:
        parts, rest = list(held), total - held_sum
    return [part + more for part, more in zip(parts, even(rest, n), strict=True)]


def plan(
    policies: Mapping[TenantId, TenantPolicy], capacity: int | None, partitions: Sequence[PartitionBooks]
) -> Deal:
    """The deal of these policies to partitions that hold what was read of them."""
    n = len(partitions)
    deal = Deal(other=[{} for _ in partitions])
    totals = _totals(policies, capacity)
    if DEFAULT in totals and n > 1:  # who has moved allotment about, or holds some, is dealt its own
        for books in partitions:
            for name in (*books.limits, *books.held):
                if _is_tenant(name):
                    totals.setdefault(name, totals[DEFAULT])
    for name, total in totals.items():
        held = [books.held.get(name, 0) for books in partitions]
        deal.limits[name] = even(total, n) if name == DEFAULT else fitted(total, held)
        if sum(held) > total:
            deal.owed.add(name)
    for tenant, policy in policies.items():
        name = DEFAULT if tenant == DEFAULT_TENANT else str(tenant)
        # A reservation is a promise to a name.
        reserved = even(policy.redis_reserved_bytes if name != DEFAULT else 0, n)
        for index, other in enumerate(deal.other):
            other[f"o:{name}"] = policy.over_quota
            other[f"w:{name}"] = repr(policy.weight)
            if reserved[index]:
                other[f"r:{name}"] = str(reserved[index])
    return deal


def missing(deal: Deal, lowered: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """How far to raise each partition's limits, once they are lowered, so that they come to the deal's and not above.

    A partition may keep more than its part, if it came to hold more while the deal was made.
    """
    more: list[dict[str, int]] = [{} for _ in lowered]
    for name, targets in deal.limits.items():
        rest = sum(targets) - sum(now[name] for now in lowered)
        for index, now in enumerate(lowered):
            bytes_ = min(rest, targets[index] - now[name])
            if bytes_ > 0:
                more[index][name] = bytes_
                rest -= bytes_
    return more


def is_dealt(
    policies: Mapping[TenantId, TenantPolicy], capacity: int | None, partitions: Sequence[PartitionBooks]
) -> bool:
    """Whether the partitions have between them exactly the bounds that these policies give."""
    expected = plan(policies, capacity, partitions)
    for name in expected.limits:
        total = sum(expected.limits[name])
        parts = [books.limits.get(name) if name == DEFAULT else books.allotment(name) for books in partitions]
        if None in parts or sum(int(part) for part in parts if part is not None) != total:
            return False
    for books, other in zip(partitions, expected.other, strict=True):
        if {name: value for name, value in books.limits.items() if name[1:2] == ":"} != other:
            return False
        if any(name != DEAL and name[1:2] != ":" and name not in expected.limits for name in books.limits):
            return False
    return len({books.limits.get(DEAL) for books in partitions}) == 1


@dataclass(frozen=True, slots=True)
class Move:
    """take: unused bytes out of each partition, by its number; force: bytes besides, for which blocks must leave.
    give: to whom, and how much of what is taken; what is forced is for the last of those."""

    take: Mapping[int, int]
    force: Mapping[int, int]
    give: Mapping[int, int]


def plan_move(name: str, short: Mapping[int, int], partitions: Sequence[PartitionBooks], *, may_force: bool) -> Move:
    """How those that are short of so many bytes get them out of what lies unused elsewhere.

    may_force: if that is too little, the tenant's own blocks elsewhere may leave for it.
    """
    unused = {p: books.unused(name) for p, books in enumerate(partitions)}
    take: dict[int, int] = {}
    give: dict[int, int] = {}
    missing = 0
    # Where several are short, one after the other gets what it needs, out of those that come later too: two halves of
    # a block are none.
    for p in sorted(short, key=lambda p: -unused[p]):
        wanted = max(0, short[p] - unused.pop(p))
        for q in sorted(unused, key=lambda q: -unused[q]):
            bytes_ = min(wanted, unused[q])
            if bytes_ > 0:
                take[q] = take.get(q, 0) + bytes_
                give[p] = give.get(p, 0) + bytes_
                unused[q] -= bytes_
                wanted -= bytes_
        if wanted:
            give.setdefault(p, 0)
            missing += wanted
    force: dict[int, int] = {}
    if may_force and missing:
        held = {q: books.held.get(name, 0) for q, books in enumerate(partitions) if q not in give}
        for q in sorted(held, key=lambda q: -held[q]):
            force[q] = min(missing - sum(force.values()), held[q])
        if sum(force.values()) < missing:  # there is not enough anywhere: nobody's blocks leave for nothing
            force = {}
    force = {q: bytes_ for q, bytes_ in force.items() if bytes_}
    return Move(take, force, give)


def shared_out(got: int, give: Mapping[int, int]) -> dict[int, int]:
    """What was got, to those that are short, in order; the last one takes what is over."""
    parts: dict[int, int] = {}
    for p, asked in give.items():
        parts[p] = min(asked, got - sum(parts.values()))
    if parts:
        parts[next(reversed(parts))] += got - sum(parts.values())
    return {p: part for p, part in parts.items() if part > 0}


def _totals(policies: Mapping[TenantId, TenantPolicy], capacity: int | None) -> dict[str, int]:
    totals = {
        (DEFAULT if tenant == DEFAULT_TENANT else str(tenant)): policy.redis_limit_bytes
        for tenant, policy in policies.items()
        if policy.redis_limit_bytes is not None
    }
    return totals if capacity is None else {**totals, CAPACITY: capacity}


def _is_tenant(name: str) -> bool:
    return ":" not in name and name != DEFAULT
