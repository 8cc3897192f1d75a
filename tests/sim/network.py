"""Messages between processes: how long they take, and which are lost, late, doubled or cut off.

Owns delays and partitions. What a message asks for is done where and when it arrives; what became of it is known
only to
whoever hears the answer. Two kinds of way: a question with its answer, as to the shared state, and a connection,
on which nothing is lost or overtakes, but all of it may be late or end.
"""

from __future__ import annotations

import contextvars
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tests.sim.loop import Host, SimLoop, current_host
from tests.sim.threads import Waiters

T = TypeVar("T")

SHARED: Final = "shared state"

HOLD_S: Final = 0.2
"""How often a connection tries again to get through to the other side of a partition."""


class NoAnswerError(Exception):
    """The time was over. Whether it was done, nobody knows."""


class UnreachableError(Exception):
    """Nobody listens there, or no way leads there."""


@dataclass(slots=True)
class Weather:
    """Probabilities for each message. late_s: what late ones take at most, which is longer than anybody waits; of the
    tenths, hundredths and so on of it there are as many."""

    delay_s: float = 0.0005
    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    late_s: float = 30.0


class Network:
    """Between hosts, by name."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self.weather = Weather()
        self.byte_s = 2e-5
        """What each takes on a connection: blocks are on their way for long enough that much happens meanwhile."""
        self._rng = rng
        self._sides: Mapping[str, int] = {}
        self._wire = contextvars.Context()
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._ports = 1_000
        self.ends: dict[Host, dict[End, None]] = {}
        """Open ones."""
        self.asked = self.lost = 0

    # Partitions.

    def cut(self, sides: Mapping[str, int]) -> None:
        """Only hosts of one side reach each other; who is not named is on side 0."""
        self._sides = dict(sides)

    def heal(self) -> None:
        self._sides = {}

    def joins(self, one: str, other: str) -> bool:
        return self._sides.get(one, 0) == self._sides.get(other, 0)

    def delay(self) -> float:
        weather = self.weather
        if weather.late and self._rng.random() < weather.late:
            return weather.delay_s * (weather.late_s / weather.delay_s) ** self._rng.random()
        return weather.delay_s * self._rng.uniform(0.5, 2.0)

    # Questions and answers.

    def ask(self, place: str, act: Callable[[], T], *, timeout_s: float) -> T:
        """Have something done there. Errors: NoAnswerError, UnreachableError."""
        host = current_host()
        if host is None:  # the test's own hand
            return act()
        if not host.alive:
            raise UnreachableError
        self.asked += 1
        sent_at, there, weather = self.loop.time(), self.delay(), self.weather
        outcome: list[T] = []

        def arrive() -> None:
            if self.joins(host.name, place):
                outcome.append(act())

        is_lost = weather.lost and self._rng.random() < weather.lost
        if not is_lost:
            self.loop.call_later(there, arrive, context=self._wire)
        if weather.doubled and self._rng.random() < weather.doubled:
            self.loop.call_later(there + self.delay(), arrive, context=self._wire)
        back = self.delay()
        self.loop.sleep(min(there + back, timeout_s))
        was_heard = outcome and there + back <= timeout_s and self.joins(host.name, place)
        if not was_heard or (weather.lost and self._rng.random() < weather.lost):
            self.lost += 1
            left = sent_at + timeout_s - self.loop.time()
            if left > 0:
                self.loop.sleep(left)
            raise NoAnswerError
        return outcome[0]

    # Connections.

    def listen(self, host: Host, address: str) -> Listener:
        self._ports += 1
        listener = Listener(self, host, (address, self._ports))
        self._listeners[listener.address] = listener
        return listener

    def connect(self, address: tuple[str, int], *, timeout_s: float) -> End:
        """Errors: UnreachableError, NoAnswerError."""
        host = current_host()
        assert host is not None
        listener = self._listeners.get(address)
        if listener is None or not listener.host.alive or not host.alive:
            self.loop.sleep(self.delay())
            raise UnreachableError
        trip = self.delay() + self.delay()
        if not self.joins(host.name, listener.host.name) or trip > timeout_s:
            self.loop.sleep(timeout_s)
            raise NoAnswerError
        self.loop.sleep(trip)
        ours, theirs = End(self, host, address), End(self, listener.host, (host.name, 0))
        ours.other, theirs.other = theirs, ours
        listener.waiting.append(theirs)
        listener.waiters.wake()
        return ours

    def hang_up(self, host: Host) -> None:
        """The process has ended: its ports close, and the kernel says goodbye for it."""
        for address, listener in list(self._listeners.items()):
            if listener.host is host:
                del self._listeners[address]
        for end in list(self.ends.pop(host, ())):
            end.close()

    def carry(self, sender: End, receiver: End, parcel: bytes | None) -> None:
        """In order; None for goodbye."""
        sender.flying.append(parcel)
        sender.arrives_at = max(sender.arrives_at, self.loop.time() + self.delay())

        def arrive() -> None:
            if receiver.is_over:
                sender.flying.clear()
            elif not self.joins(sender.host.name, receiver.host.name):
                self.loop.call_later(HOLD_S, arrive, context=self._wire)
            elif sender.flying:
                receiver.arrived(sender.flying.popleft())

        self.loop.call_at(sender.arrives_at, arrive, context=self._wire)


class Listener:
    def __init__(self, network: Network, host: Host, address: tuple[str, int]) -> None:
        self.host = host
        self.address = address
        self.waiting: deque[End] = deque()
        self.waiters = Waiters(network.loop)

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def accept(self) -> tuple[End, tuple[str, int]]:
        while not self.waiting:
            self.waiters.wait()
        end = self.waiting.popleft()
        return end, end.address


@dataclass(eq=False)
class End:
    """One side of a connection; stands for its socket."""

    network: Network
    host: Host
    address: tuple[str, int]
    other: End = field(init=False)
    inbox: deque[bytes] = field(default_factory=deque)
    flying: deque[bytes | None] = field(default_factory=deque)
    """On their way to the other side, in order."""
    arrives_at: float = 0.0
    is_closed: bool = False
    is_over: bool = False
    """Closed here, or by the other side as far as is known here."""

    def __post_init__(self) -> None:
        self.waiters = Waiters(self.network.loop)
        self.network.ends.setdefault(self.host, {})[self] = None

    def arrived(self, parcel: bytes | None) -> None:
        if parcel is None:
            self.is_over = True
        elif not self.is_closed:
            self.inbox.append(parcel)
        self.waiters.wake(1 << 30)

    def setsockopt(self, *_: object) -> None:
        """Nothing here needs it."""

    def recv(self, n_bytes: int, flags: int) -> bytes:
        """As who looks whether an idle connection may be used again does."""
        if self.inbox or self.is_over:
            return b""
        raise BlockingIOError

    def shutdown(self, how: int) -> None:
        self.close()

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = self.is_over = True
            self.inbox.clear()
            self.network.ends.get(self.host, {}).pop(self, None)
            self.network.carry(self, self.other, None)
            self.waiters.wake(1 << 30)
