"""When this replica leads, and when it asks again: decisions over what it was told and its own clock.

A lease ends at the server so many seconds after the server has heard us, which is later than when we asked. So who
counts from before it asked, and stops a little early, has stopped before another can begin, whatever the network did.
Work that had begun by then may end later: what could do harm then carries the token, and the server refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tiered.cluster.leadership import Leader

USABLE_PART: Final = 0.8
"""Of a lease; the rest covers clocks that do not run equally fast, and the round that has just begun."""

ASKED_PER_LEASE: Final = 3
"""A leader renews so often: two answers may be lost."""

LOOKS_S: Final = 0.5
"""Whoever waits asks at least so often: a leader that stops in order is followed at once."""

AFTER_LAPSE_S: Final = 0.02
"""Who waits for another's lease to end asks this much later, since the server counts in whole milliseconds."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """What one replica knows. token 0: it does not lead. All times are on its own clock."""

    replica: str
    lease_s: float
    leader: Leader | None = None
    token: int = 0
    leads_until: float = 0.0
    ask_at: float = 0.0

    def leads(self, now: float) -> bool:
        return self.token != 0 and now < self.leads_until


def heard(state: LeaseState, leader: Leader, *, asked_at: float, now: float) -> LeaseState:
    """The server said who leads; asked_at is from before the question was sent."""
    interval_s = state.lease_s / ASKED_PER_LEASE
    if leader.replica == state.replica:
        until = asked_at + state.lease_s * USABLE_PART
        return replace(state, leader=leader, token=leader.token, leads_until=until, ask_at=asked_at + interval_s)
    # Whoever waits asks when the lease would end, so that a killed leader is missed no longer than that.
    ask_at = now + min(interval_s, LOOKS_S, leader.lease_left_s + AFTER_LAPSE_S)
    return replace(state, leader=leader, token=0, leads_until=0.0, ask_at=ask_at)


def unheard(state: LeaseState, *, now: float) -> LeaseState:
    """No answer: what was ours stays so until its time is over, and is asked for again soon."""
    return replace(state, ask_at=now + state.lease_s / ASKED_PER_LEASE / 4)


def resigned(state: LeaseState) -> LeaseState:
    return replace(state, token=0, leads_until=0.0, ask_at=float("inf"))
