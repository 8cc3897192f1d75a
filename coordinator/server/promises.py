"""Whether a policy can be kept beside the others: reserved bytes may not add up to more than there is.

A decision over plain values; where they come from and what a refusal looks like is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiered.tenancy.policy import TenantPolicy


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a tier can hold; None means unbounded or not known yet. hot is that of the smallest node alive, since a
    hot reservation holds on every node; hot_block_bytes of the one with the largest blocks, 0 while none has any."""

    hot_bytes: int | None
    redis_bytes: int | None
    hot_block_bytes: int = 0

    def hot_reserved(self, policy: TenantPolicy) -> int:
        """The higher of a policy's promises in bytes and in blocks."""
        return max(policy.hot_reserved_bytes, policy.hot_reserved_blocks * self.hot_block_bytes)


@dataclass(frozen=True, slots=True)
class Overpromise:
    """field is the one to lower; reserved_bytes the sum with it, of which capacity_bytes exist."""

    field: str
    reserved_bytes: int
    capacity_bytes: int

    def __str__(self) -> str:
        return (
            f"with this, {self.reserved_bytes} bytes would be reserved for all tenants together, and only "
            f"{self.capacity_bytes} exist; lower it by {self.reserved_bytes - self.capacity_bytes} or more"
        )


def overpromise(policy: TenantPolicy, others: Iterable[TenantPolicy], capacity: Capacity) -> Overpromise | None:
    """The first tier whose reservations would exceed it, or None. Asking for nothing is never refused."""
    rest = [other for other in others if other.tenant != policy.tenant]
    hot = capacity.hot_reserved(policy)
    hot_field = "hot_reserved_bytes" if hot == policy.hot_reserved_bytes else "hot_reserved_blocks"
    for field, asked, taken, exists in (
        (hot_field, hot, sum(capacity.hot_reserved(other) for other in rest), capacity.hot_bytes),
        (
            "redis_reserved_bytes",
            policy.redis_reserved_bytes,
            sum(other.redis_reserved_bytes for other in rest),
            capacity.redis_bytes,
        ),
    ):
        if exists is not None and asked > 0 and asked + taken > exists:
            return Overpromise(field, asked + taken, exists)
    return None
