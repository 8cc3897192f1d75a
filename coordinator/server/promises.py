"""Whether a policy can be kept beside the others: reserved bytes may not add up to more than there is.

A decision over plain values; where they come from and what a refusal looks like is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiered.tenancy.policy import TenantPolicy
from tiered.types import NodeView


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """One node's pool. block_bytes 0: no engine has said its layout yet."""

    capacity_bytes: int
    block_bytes: int = 0

    def reserved(self, policy: TenantPolicy) -> int:
        """The higher of a policy's promises per node, in bytes and in blocks."""
        return max(policy.hot_reserved_bytes, policy.hot_reserved_blocks * self.block_bytes)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the tiers can hold: the pools of the nodes alive, none while none has joined, and the Redis tier, None
    while it is unbounded."""

    nodes: tuple[NodeRoom, ...]
    redis_bytes: int | None


@dataclass(frozen=True, slots=True)
class Overpromise:
    """field is the one to lower; reserved_bytes the sum with it, of which capacity_bytes exist. where: in words."""

    field: str
    reserved_bytes: int
    capacity_bytes: int
    where: str = ""

    def __str__(self) -> str:
        return (
            f"with this, {self.reserved_bytes} bytes would be reserved for all tenants together{self.where}, "
            f"and only {self.capacity_bytes} exist; lower it by {self.reserved_bytes - self.capacity_bytes} or more"
        )


def rooms_of(nodes: Iterable[NodeView]) -> tuple[NodeRoom, ...]:
    return tuple(NodeRoom(node.info.capacity_bytes, node.stats.block_bytes) for node in nodes)


def overpromise(policy: TenantPolicy, others: Iterable[TenantPolicy], capacity: Capacity) -> Overpromise | None:
    """The first tier whose reservations would exceed it, or None. others may hold the tenant's present policy.

    A reservation per node has to fit each node, and the smallest first; what all nodes keep that way and the totals
    have to fit all of them together. Asking for no more than before is never refused, though nodes have gone since.
    """
    rest, before = [], TenantPolicy(tenant=policy.tenant)
    for other in others:
        if other.tenant == policy.tenant:
            before = other
        else:
            rest.append(other)
    return (
        _beyond_a_node(policy, before, rest, capacity.nodes)
        or _beyond_all_nodes(policy, before, rest, capacity.nodes)
        or _beyond_redis(policy, before, rest, capacity.redis_bytes)
    )


def total_overpromise(policies: Iterable[TenantPolicy], nodes: Sequence[NodeView]) -> tuple[int, int] | None:
    """(reserved, existing) hot bytes if more is reserved than exists. None, too, while no node is known."""
    rooms = rooms_of(nodes)
    asked, exists = _hot_total(policies, rooms), sum(room.capacity_bytes for room in rooms)
    return (asked, exists) if rooms and asked > exists else None


def _hot_total(policies: Iterable[TenantPolicy], rooms: Sequence[NodeRoom]) -> int:
    return sum(p.hot_total_reserved_bytes + sum(room.reserved(p) for room in rooms) for p in policies)


def _beyond_a_node(
    policy: TenantPolicy, before: TenantPolicy, rest: Sequence[TenantPolicy], rooms: Sequence[NodeRoom]
) -> Overpromise | None:
    for room in sorted(rooms, key=lambda room: room.capacity_bytes):
        asked = room.reserved(policy)
        together = asked + sum(room.reserved(other) for other in rest)
        if asked > room.reserved(before) and together > room.capacity_bytes:
            field = "hot_reserved_bytes" if asked == policy.hot_reserved_bytes else "hot_reserved_blocks"
            return Overpromise(field, together, room.capacity_bytes)
    return None


def _beyond_all_nodes(
    policy: TenantPolicy, before: TenantPolicy, rest: Sequence[TenantPolicy], rooms: Sequence[NodeRoom]
) -> Overpromise | None:
    asked, exists = _hot_total([policy], rooms), sum(room.capacity_bytes for room in rooms)
    together = asked + _hot_total(rest, rooms)
    if not rooms or asked <= _hot_total([before], rooms) or together <= exists:
        return None
    field = "hot_total_reserved_bytes"
    if policy.hot_total_reserved_bytes <= before.hot_total_reserved_bytes:
        field = "hot_reserved_bytes" if policy.hot_reserved_bytes else "hot_reserved_blocks"
    return Overpromise(field, together, exists, f" on {len(rooms)} nodes")


def _beyond_redis(
    policy: TenantPolicy, before: TenantPolicy, rest: Sequence[TenantPolicy], exists: int | None
) -> Overpromise | None:
    asked = policy.redis_reserved_bytes
    together = asked + sum(other.redis_reserved_bytes for other in rest)
    if exists is None or asked <= before.redis_reserved_bytes or together <= exists:
        return None
    return Overpromise("redis_reserved_bytes", together, exists)
