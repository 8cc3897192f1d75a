"""Where the tenants' total reservations lie: parts on nodes, never more on a node than it can keep.

What fits nowhere, since nodes went, is scaled down in proportion; it is placed again when they are back. Parts stay
where they are as long as that is nearly right: a reservation that wanders protects nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.leader.portion import portion
from tiered.types import TenantId

STILL_PARTS: Final = 8
"""A part of a reservation by which one of its parts may be off before all are placed anew."""

_ROUNDS: Final = 8
"""Of moving what one node has no room for to others. What is left after so many waits for the next round."""


@dataclass(frozen=True, slots=True)
class Lender:
    """One tenant's reservation; weights, caps and before are those of each node, in one order for all tenants."""

    tenant: TenantId
    reserved_bytes: int
    weights: Sequence[int]
    caps: Sequence[int]
    before: Sequence[int]


def place(lenders: Sequence[Lender], rooms: Sequence[int]) -> Mapping[TenantId, list[int]]:
    """Each tenant's parts, in the order of the rooms, which are what each node can keep for all of them."""
    asked = sum(lender.reserved_bytes for lender in lenders)
    room = sum(rooms)
    goals = {
        lender.tenant: lender.reserved_bytes if asked <= room else lender.reserved_bytes * room // asked
        for lender in lenders
    }
    fresh = _placed(lenders, rooms, goals)
    if all(_is_nearly(lender, fresh[lender.tenant]) for lender in lenders) and all(
        sum(lender.before[i] for lender in lenders) <= room_bytes for i, room_bytes in enumerate(rooms)
    ):
        return {lender.tenant: list(lender.before) for lender in lenders}
    return fresh


def _placed(
    lenders: Sequence[Lender], rooms: Sequence[int], goals: Mapping[TenantId, int]
) -> dict[TenantId, list[int]]:
    parts = {lender.tenant: [0] * len(rooms) for lender in lenders}
    left = list(rooms)
    for _ in range(_ROUNDS):
        asks: dict[TenantId, list[int]] = {}
        for lender in lenders:
            mine = parts[lender.tenant]
            caps = [min(cap - part, free) for cap, part, free in zip(lender.caps, mine, left, strict=True)]
            asks[lender.tenant] = portion(goals[lender.tenant] - sum(mine), lender.weights, caps)
        moved = 0
        for i, free in enumerate(left):
            here = [asks[lender.tenant][i] for lender in lenders]
            for lender, part in zip(lenders, portion(min(free, sum(here)), here, here), strict=True):
                parts[lender.tenant][i] += part
                left[i] -= part
                moved += part
        if not moved:
            break
    return parts


def _is_nearly(lender: Lender, fresh: Sequence[int]) -> bool:
    if sum(lender.before) != sum(fresh):
        return False
    still = lender.reserved_bytes // STILL_PARTS
    return all(
        before <= cap and abs(before - part) <= still
        for before, cap, part in zip(lender.before, lender.caps, fresh, strict=True)
    )
