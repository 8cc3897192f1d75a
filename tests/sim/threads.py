"""What ``threading`` and ``queue`` offer, for greenlets: the services' own threads run as they are, in simulated
time.

Owns only what those threads use. A thread begins in the process that starts it and ends with it.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import greenlet

from tests.sim.loop import SimLoop, current_host


class Waiters:
    """Greenlets that wait for something, the longest first."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._waiting: deque[list[Any]] = deque()

    def wait(self, timeout_s: float | None = None) -> bool:
        """False when the time was over before anybody woke us."""
        ticket: list[Any] = [self._loop.waker(), False]
        self._waiting.append(ticket)
        timer = None
        if timeout_s is not None:
            timer = self._loop.call_later(max(0.0, timeout_s), self._late, ticket)
        self._loop.wait()
        if timer is not None:
            timer.cancel()
        return bool(ticket[1])

    def wake(self, n: int = 1) -> None:
        """Each goes on in a turn of its own, in its own process."""
        while self._waiting and n > 0:
            ticket = self._waiting.popleft()
            if ticket[0].dead:
                continue
            ticket[1] = True
            ticket[0].soon()
            n -= 1

    def _late(self, ticket: list[Any]) -> None:
        if not ticket[1]:
            self._waiting.remove(ticket)
            ticket[0]()


class SimThreading:
    """In the place of the module ``threading``."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def Thread(  # noqa: N802  # the module's own name for it
        self, target: Callable[..., Any], args: Iterable[Any] = (), name: str = "", daemon: bool | None = None
    ) -> SimThread:
        return SimThread(self._loop, target, tuple(args))

    def Lock(self) -> SimLock:  # noqa: N802
        return SimLock(self._loop)

    def Condition(self, lock: SimLock | None = None) -> SimCondition:  # noqa: N802
        return SimCondition(self._loop, lock or SimLock(self._loop))

    def Event(self) -> SimEvent:  # noqa: N802
        return SimEvent(self._loop)


class SimThread:
    daemon = True

    def __init__(self, loop: SimLoop, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._loop = loop
        self._target = target
        self._args = args

    def start(self) -> None:
        host = current_host()
        assert host is not None, "a thread of no process"
        self._loop.thread(host, lambda: self._target(*self._args))

    def join(self, timeout: float | None = None) -> None:
        """Nobody here needs to know."""


class SimLock:
    def __init__(self, loop: SimLoop) -> None:
        self._waiters = Waiters(loop)
        self._owner: greenlet.greenlet | None = None

    def __enter__(self) -> SimLock:
        while self._owner is not None and not self._owner.dead:
            assert self._owner is not greenlet.getcurrent(), "taken twice"
            self._waiters.wait()
        self._owner = greenlet.getcurrent()
        return self

    def __exit__(self, *_: object) -> None:
        self._owner = None
        self._waiters.wake()


class SimCondition:
    def __init__(self, loop: SimLoop, lock: SimLock) -> None:
        self._lock = lock
        self._waiters = Waiters(loop)

    def __enter__(self) -> SimCondition:
        self._lock.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.__exit__()
        woken = self._waiters.wait(timeout)
        self._lock.__enter__()
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        waited = True
        while not predicate() and waited:
            waited = self.wait(timeout)
        return predicate()

    def notify(self, n: int = 1) -> None:
        self._waiters.wake(n)

    def notify_all(self) -> None:
        self._waiters.wake(1 << 30)


class SimEvent:
    def __init__(self, loop: SimLoop) -> None:
        self._is_set = False
        self._waiters = Waiters(loop)

    def set(self) -> None:
        self._is_set = True
        self._waiters.wake(1 << 30)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._waiters.wait(timeout)
        return self._is_set


class SimQueues:
    """In the place of the module ``queue``."""

    Empty = queue.Empty

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def SimpleQueue(self) -> SimQueue:  # noqa: N802
        return SimQueue(self._loop)

    def Queue(self, maxsize: int = 0) -> SimQueue:  # noqa: N802
        return SimQueue(self._loop)


class SimQueue:
    def __init__(self, loop: SimLoop) -> None:
        self._items: deque[Any] = deque()
        self._waiters = Waiters(loop)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake()

    def get(self, timeout: float | None = None) -> Any:
        while not self._items:
            if not self._waiters.wait(timeout):
                raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()
