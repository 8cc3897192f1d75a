"""Keeps this replica's claim to lead: asks when :mod:`coordinator.leader.lease` says so, and tells the others here.

Owns the only copy of the state; it is replaced whole, so that any thread may look at it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from dataclasses import dataclass, field

from coordinator.leader.lease import LeaseState, heard, resigned, unheard
from coordinator.view.keeper import pause
from tiered.clock import Clock
from tiered.cluster.leadership import Leader, Leadership
from tiered.errors import TierError
from tiered.log import get_logger

log = get_logger(__name__)

_LOOK_S = 0.1
"""The longest sleep between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class LeaderView:
    """Who this replica is, and who leads as far as it knows. token: of our reign, 0 while we do not lead."""

    replica: str
    token: int
    leader: Leader | None

    @property
    def is_leader(self) -> bool:
        return self.token != 0


def replica_name() -> str:
    """Of this life of this process; no other life of any coordinator has the same."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@dataclass(slots=True)
class Leading:
    leadership: Leadership
    clock: Clock
    lease_s: float
    replica: str = field(default_factory=replica_name)
    url: str = ""
    """Where others find this replica; known once it listens."""
    _state: LeaseState = field(init=False)
    _said: bool = False
    """Whether the log says that we lead."""

    def __post_init__(self) -> None:
        self._state = LeaseState(self.replica, self.lease_s)

    def leads(self) -> bool:
        """Whether work of the leader's may begin now."""
        return self._state.leads(self.clock.now())

    def token(self) -> int:
        """Of our reign; 0 while we do not lead."""
        return self._state.token if self.leads() else 0

    def standing(self) -> LeaderView:
        """The leader is who led when the server was last heard."""
        return LeaderView(self.replica, self.token(), self._state.leader)

    def ask(self) -> None:
        """Ask once, blocking, if it is time."""
        state, asked_at = self._state, self.clock.now()
        if asked_at >= state.ask_at:
            try:
                leader = self.leadership.ask(self.replica, self.url, lease_s=self.lease_s)
            except TierError as error:
                log.debug("nobody said who leads", reason=str(error))
                self._state = unheard(state, now=self.clock.now())
            else:
                self._state = heard(state, leader, asked_at=asked_at, now=self.clock.now())
        self._say()

    async def run(self, stop: asyncio.Event) -> None:
        """Ask for ever; at the end let another lead at once."""
        try:
            while not stop.is_set():
                await asyncio.to_thread(self.ask)
                await pause(stop, min(_LOOK_S, max(0.0, self._state.ask_at - self.clock.now())))
        finally:
            await asyncio.to_thread(self.resign)

    def resign(self) -> None:
        """Best effort: a lease that is not ended lapses."""
        led = self._state.token != 0
        self._state = resigned(self._state)
        self._say()
        if led:
            try:
                self.leadership.resign(self.replica)
            except TierError as error:
                log.warning("resigned without saying so; the lease will lapse", reason=str(error))

    def _say(self) -> None:
        leads, leader = self.leads(), self._state.leader
        if leads and not self._said:
            log.info("leading", replica=self.replica, token=self._state.token)
        elif self._said and not leads:
            other = leader.replica if leader is not None and leader.replica != self.replica else None
            log.warning("no longer leading", replica=self.replica, leader=other)
        self._said = leads
