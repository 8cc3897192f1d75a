"""Deals the bounds to the partitions, moves allotment between them, and puts right what a crash left undone.

Owns the order of the steps: everywhere lower first, then raise, so that at no instant the partitions have more
between them than the policies give. A deal has a number, and a partition that has seen it refuses what belongs to an
earlier one; so a move that was under way when a deal began is lost, never counted twice. What is lost lies unused
until the next deal. How much goes where is :mod:`tiered.cluster.bounds`' to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tiered.cluster import scripts
from tiered.cluster.bounds import CAPACITY, DEFAULT, PartitionBooks, is_dealt, missing, plan, plan_move, shared_out
from tiered.cluster.connection import Client, answered, pipelined
from tiered.cluster.keys import Keys
from tiered.cluster.routing import Command
from tiered.tenancy.policy import TenantPolicy, read_policies
from tiered.types import TenantId

_REPAIR_AFTER: Final = 2
"""Looks in a row that find something amiss: one alone may have seen a move half-way."""


class Allotments:
    """Errors of every method: TierError when Redis does not answer; what was lowered by then stays lowered."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._amiss = 0

    def deal(self) -> None:
        """Bring the bounds that the policies give into every partition.

        Should another deal begin meanwhile, it has policies that are no older, and this one leaves the rest to it.
        """
        number, policies, capacity = self._offer(begin=True)
        parts = self._keys.every()
        if len(parts) == 1:
            dealt = plan(policies, capacity, [PartitionBooks({}, {})])
            bounds = {name: (totals[0], False) for name, totals in dealt.limits.items()}
            scripts.set_bounds(self._client, parts[0], number, bounds, dealt.other[0], only_falls=False)
            return
        dealt = plan(policies, capacity, self._books())
        lowered = []
        for index, part in enumerate(parts):
            bounds = {name: (targets[index], name not in dealt.owed) for name, targets in dealt.limits.items()}
            now = scripts.set_bounds(self._client, part, number, bounds, dealt.other[index], only_falls=True)
            if now is None:
                return
            lowered.append(now)
        raises = [(part, more) for part, more in zip(parts, missing(dealt, lowered), strict=True) if more]
        scripts.raise_limits(self._client, number, raises)

    def repair(self) -> bool:
        """One look; whether it ended in a new deal, because the partitions had not what the policies give."""
        _, policies, capacity = self._offer(begin=False)
        if is_dealt(policies, capacity, self._books()):
            self._amiss = 0
            return False
        self._amiss += 1
        if self._amiss < _REPAIR_AFTER and self._keys.partitions > 1:
            return False
        self._amiss = 0
        self.deal()
        return True

    def move(self, name: str, short: Mapping[int, int], *, may_force: bool) -> bool:
        """Bring unused allotment of a tenant, or ``:capacity``, to partitions that are short of so many bytes.

        may_force: where too little lies unused, its oldest blocks elsewhere may leave for it, if its policy has its
        own blocks leave at all. Returns whether any partition got something.
        """
        moved = plan_move(name, short, self._books_of(name), may_force=may_force)
        parts = self._keys.every()
        asked = {p: moved.take.get(p, 0) + moved.force.get(p, 0) for p in (*moved.take, *moved.force)}
        if not asked:
            return not moved.give
        cuts = [(parts[p], bytes_, p in moved.force) for p, bytes_ in asked.items()]
        taken = scripts.cut(self._client, name, cuts)
        number = max((number for bytes_, number in taken if bytes_), default=0)
        got = sum(bytes_ for bytes_, of in taken if of == number)  # an earlier deal's are nobody's by now
        gifts = shared_out(got, moved.give)
        raised = scripts.raise_limits(
            self._client, number, [(parts[p], {name: bytes_}) for p, bytes_ in gifts.items()]
        )
        return any(raised)

    def _offer(self, *, begin: bool) -> tuple[int, dict[TenantId, TenantPolicy], int | None]:
        number, stored, capacity = scripts.deal(self._client, self._keys, begin=begin)
        # A tenant whose policy cannot be read gets none here: its limit is the default one, or lower as it was.
        return number, read_policies(stored)[0], capacity

    def _books(self) -> list[PartitionBooks]:
        commands = []
        for part in self._keys.every():
            commands += [Command(("HGETALL", key), key) for key in (part.limits(), part.usage())]
        replies = answered(pipelined(self._client, commands))
        return [_books_from(replies[i], replies[i + 1]) for i in range(0, len(replies), 2)]

    def _books_of(self, name: str) -> list[PartitionBooks]:
        """As _books(), of one bound."""
        held = (b"U", b"P") if name == CAPACITY else (f"u:{name}".encode(), f"p:{name}".encode())
        bounds = (name.encode(), DEFAULT.encode())
        commands = []
        for part in self._keys.every():
            commands += [Command(("HMGET", part.limits(), *bounds), part.limits())]
            commands += [Command(("HMGET", part.usage(), *held), part.usage())]
        replies = answered(pipelined(self._client, commands))
        return [
            _books_from(_found(bounds, replies[i]), _found(held, replies[i + 1])) for i in range(0, len(replies), 2)
        ]


def _found(fields: Sequence[bytes], values: Sequence[bytes | None]) -> dict[bytes, bytes]:
    return {name: value for name, value in zip(fields, values, strict=True) if value is not None}


def _books_from(limits: Mapping[bytes, bytes], usage: Mapping[bytes, bytes]) -> PartitionBooks:
    held: dict[str, int] = {}
    for field, value in usage.items():
        name = field.decode()[2:] or CAPACITY
        held[name] = held.get(name, 0) + int(value)
    return PartitionBooks({name.decode(): value.decode() for name, value in limits.items()}, held)
