"""One tenant's limit, lent in shares: lower first, and raise others only by what a worker has confirmed to be below.

Nobody is raised beyond what the ceilings of all leave of the limit, a ceiling being the most that a node may have in
force. By whom more is wanted, and how far shares stay as they are though demand would have them otherwise, is decided
here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.leader.portion import portion

FLOOR_PARTS: Final = 4
"""A node has at least a quarter of an equal part, so that whoever begins there finds room."""

STILL_PARTS: Final = 32
"""A part of the limit below which no share is lowered for another's sake: shares do not flap with every request."""

SPARE_PARTS: Final = 64
"""A part of the limit that may lie unlent: no share is raised by less."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one tenant stands on one node. is_known: it said that it took its share, or what it holds without one;
    else its share may only be lowered, and only because the sum is above the limit."""

    share_bytes: int
    ceiling_bytes: int
    used_bytes: int = 0
    wanted_bytes: int = 0
    cap_bytes: int = 1 << 60
    is_known: bool = True


def lend(limit_bytes: int, standings: Sequence[Standing], *, everywhere: bool, may_raise: bool) -> list[int]:
    """One tenant's shares from now on, in the order of the standings.

    The sum of what each may have in force, ``max(ceiling, share)``, is afterwards no more than the limit, or than it
    was before.
    """
    targets = _targets(limit_bytes, standings, everywhere=everywhere)
    lowered = _lowered(limit_bytes, standings, targets)
    if not may_raise:
        return lowered
    room = limit_bytes - sum(max(s.ceiling_bytes, low) for s, low in zip(standings, lowered, strict=True))
    if room < 0:  # not even up to what it holds: it may have let go of that by the time it is raised
        return lowered
    raises = [_raise(limit_bytes, s, t) for s, t in zip(standings, targets, strict=True)]
    raises = portion(max(0, limit_bytes - sum(lowered)), raises, raises)
    beyond = [max(0, low + more - s.ceiling_bytes) for low, more, s in zip(lowered, raises, standings, strict=True)]
    granted = portion(room, beyond, beyond)
    return [
        low + more - (asked - given) for low, more, asked, given in zip(lowered, raises, beyond, granted, strict=True)
    ]


def _targets(limit_bytes: int, standings: Sequence[Standing], *, everywhere: bool) -> list[int]:
    """By demand, above a floor for whoever takes part."""
    demands = [s.used_bytes + min(s.wanted_bytes, limit_bytes) for s in standings]
    parties = [everywhere or demand > 0 for demand in demands]
    n_parties = max(1, sum(parties))
    floors = [
        min(s.cap_bytes, limit_bytes // (FLOOR_PARTS * n_parties)) if party else 0
        for s, party in zip(standings, parties, strict=True)
    ]
    weights = [demand + floor if party else 0 for demand, floor, party in zip(demands, floors, parties, strict=True)]
    if not any(weights):
        weights = [int(party) for party in parties]
    caps = [s.cap_bytes - floor for s, floor in zip(standings, floors, strict=True)]
    rest = portion(limit_bytes - sum(floors), weights, caps)
    return [floor + part for floor, part in zip(floors, rest, strict=True)]


def _lowered(limit_bytes: int, standings: Sequence[Standing], targets: Sequence[int]) -> list[int]:
    """The shares, lowered by what somebody lacks beyond what lies unlent; and all of them, where they are above the
    limit."""
    shares = [standing.share_bytes for standing in standings]
    spare = limit_bytes - sum(shares)
    if spare < 0:
        return [min(share, target) for share, target in zip(shares, targets, strict=True)]
    idle = [target == 0 and not s.used_bytes for s, target in zip(standings, targets, strict=True)]
    least = limit_bytes // (2 * FLOOR_PARTS * max(1, len(standings)))
    # Who wants more lacks what its demand is worth, anybody else only what it takes to begin.
    lacking = sum(
        max(0, (target if s.wanted_bytes > s.share_bytes // 64 else min(least, target)) - s.share_bytes)
        for s, target in zip(standings, targets, strict=True)
    )
    still = max(1, limit_bytes // STILL_PARTS)
    # By halves, so that a burst elsewhere does not empty a node at once.
    given = [
        (share - target + 1) // 2 if s.is_known and share - target >= still else 0
        for s, share, target in zip(standings, shares, targets, strict=True)
    ]
    given = portion(max(0, lacking - spare), given, given)
    return [0 if gone else share - part for share, part, gone in zip(shares, given, idle, strict=True)]


def _raise(limit_bytes: int, standing: Standing, target: int) -> int:
    more = target - standing.share_bytes
    is_much = more >= max(1, limit_bytes // SPARE_PARTS) or standing.share_bytes == 0
    return more if more > 0 and standing.is_known and is_much else 0
