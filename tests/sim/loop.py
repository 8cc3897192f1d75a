"""Simulated time for code that waits: an asyncio loop whose clock jumps to the next event, and threads without
threads.

Owns the clock, the processes that run in it, and how one is paused or killed. What the services would run in a thread
(``asyncio.to_thread``) runs in a greenlet: it may wait in the middle of a call while others go on, all on one
thread, in an order that depends on the seed alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import selectors
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import greenlet

_HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)


TURN_S: Final = 1e-6
"""What a turn of the loop takes, so that whoever waits for next to nothing does not wait for ever."""


class ProcessEnded(greenlet.GreenletExit):
    """Thrown into what a killed process was doing; no ``except Exception`` goes on after it."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What a paused process will do first when it goes on."""

    run: Callable[[], None]
    resumes_task: bool = False


@dataclass(slots=True, eq=False)
class Host:
    """One process on one machine. skew_s: what its clock is ahead of the simulation's."""

    name: str
    skew_s: float = 0.0
    alive: bool = True
    frozen: bool = False
    _backlog: list[_Step] = field(default_factory=list)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _threads: set[greenlet.greenlet] = field(default_factory=set)


class SimLoop(asyncio.SelectorEventLoop):
    """Nothing here waits for real."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_NoSelector(self))
        self._main: greenlet.greenlet | None = None
        self.failures: list[str] = []
        """Exceptions that nobody caught: defects."""
        self.set_exception_handler(self._uncaught)

    # Time.

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    # Processes. What belongs to one carries it in its context.

    def spawn(self, host: Host, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in that process."""
        context = contextvars.copy_context()
        context.run(_HOST.set, host)
        task = self.create_task(work, context=context)
        host._tasks.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            host._tasks.discard(task)
            if host.alive and not task.cancelled() and (error := task.exception()) is not None:
                self.failures.append(f"in {host.name}: " + "".join(traceback.format_exception(error)))

        task.add_done_callback(ended)
        return task

    def thread(self, host: Host, work: Callable[[], Any]) -> None:
        """Run a blocking function in that process."""
        context = contextvars.copy_context()
        context.run(_HOST.set, host)
        self._start(host, lambda: context.run(work))

    def pause(self, host: Host) -> None:
        host.frozen = True

    def resume(self, host: Host) -> None:
        host.frozen = False
        backlog, host._backlog = host._backlog, []
        for step in backlog:
            super().call_soon(step.run)

    def kill(self, host: Host) -> None:
        """It ends in the middle of whatever it does; nothing of it has an effect any more."""
        host.alive = host.frozen = False
        backlog, host._backlog = host._backlog, []
        for thread in list(host._threads):
            if not thread.dead:
                thread.throw(ProcessEnded)
        for task in list(host._tasks):
            task.cancel()
        for step in backlog:  # one that was to go on when the process stopped ends no other way
            if step.resumes_task:
                super().call_soon(step.run)

    @contextmanager
    def being(self, host: Host) -> Iterator[None]:
        """What is asked in here is asked in that process."""
        token = _HOST.set(host)
        try:
            yield
        finally:
            _HOST.reset(token)

    # What asyncio asks of a loop.

    def run_until_complete(self, future: Any) -> Any:
        self._main = greenlet.getcurrent()
        return super().run_until_complete(future)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        host = _HOST.get()

        def body() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self._start(host, body)
        return future

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        host = _HOST.get() if context is None else context.get(_HOST)
        if host is not None and host.frozen:
            handle = asyncio.Handle(callback, args, self, context)
            resumes_task = isinstance(getattr(callback, "__self__", None), asyncio.Task)
            host._backlog.append(_Step(functools.partial(_run, handle), resumes_task))
            return handle
        return super().call_soon(callback, *args, context=context)

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        host = _HOST.get() if context is None else context.get(_HOST)
        if host is None:
            return super().call_at(when, callback, *args, context=context)

        def fire() -> None:
            if host.frozen:
                host._backlog.append(_Step(late))
            elif host.alive:
                callback(*args)

        def late() -> None:
            if not timer.cancelled():
                callback(*args)

        timer = super().call_at(when, fire, context=context)
        return timer

    # Blocking code.

    def sleep(self, seconds: float) -> None:
        """In a greenlet: let that much time pass."""
        self.call_later(seconds, self.waker())
        self.wait()

    def waker(self) -> Waker:
        return Waker(self, greenlet.getcurrent(), contextvars.copy_context())

    def wait(self) -> None:
        """In a greenlet: until its waker is called."""
        assert self._main is not None
        self._main.switch()

    def _start(self, host: Host | None, work: Callable[[], Any]) -> None:
        def body() -> None:
            try:
                work()
            except ProcessEnded:
                return
            except Exception as error:
                self._uncaught(self, {"message": "in a thread", "exception": error})
            finally:
                if host is not None:
                    host._threads.discard(thread)

        assert self._main is not None
        thread = greenlet.greenlet(body, parent=self._main)
        if host is not None:
            host._threads.add(thread)
        self.call_soon(thread.switch)

    def _uncaught(self, loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = "" if error is None else "".join(traceback.format_exception(error))
        self.failures.append(f"{context.get('message')}: {error!r}\n{where}")


@dataclass(frozen=True, slots=True, eq=False)
class Waker:
    """Who calls it goes on with its greenlet, which has to be waiting then."""

    _loop: SimLoop
    _greenlet: greenlet.greenlet
    _context: contextvars.Context

    @property
    def dead(self) -> bool:
        return bool(self._greenlet.dead)

    def __call__(self) -> None:
        if not self._greenlet.dead:
            self._greenlet.switch()

    def soon(self) -> None:
        """In a turn of its own, once its process runs."""
        self._loop.call_soon(self, context=self._context)


@contextmanager
def simulated_time(loop: SimLoop) -> Iterator[None]:
    """Whoever asks the ``time`` module is told the simulation's time, as the clock of its process has it."""

    def monotonic() -> float:
        host = current_host()
        return loop.time() + (1_000.0 if host is None else host.skew_s)

    real = time.monotonic, time.time, time.perf_counter
    time.monotonic = time.perf_counter = monotonic
    time.time = lambda: STARTED_S + loop.time()
    try:
        yield
    finally:
        time.monotonic, time.time, time.perf_counter = real


STARTED_S: Final = 1_790_000_000.0
"""What a wall clock says at the simulation's beginning."""


def current_host() -> Host | None:
    """The process that runs now."""
    return _HOST.get()


class _NoSelector(selectors.BaseSelector):
    """Nothing to read: waiting only moves the clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._map: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._map[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._map.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        self._loop.advance(max(timeout, TURN_S))
        return []

    def get_map(self) -> Any:
        return self._map


def _run(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()
