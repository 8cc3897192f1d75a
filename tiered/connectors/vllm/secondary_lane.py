"""A bounded queue of jobs and the threads that run them, which can be stopped where it hurts nobody.

Does not know what a job does, only how many chunks it is about.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from tiered.log import get_logger

SAY_AFTER_S: Final = 5.0
"""How long is waited for running jobs before somebody is told; each ends by its own deadline."""

_log = get_logger("tiered.vllm")


class Job(Protocol):
    @property
    def n_chunks(self) -> int: ...


J = TypeVar("J", bound=Job)


class Lane(Generic[J]):
    """A bounded queue of jobs and the threads that run them. A job alone always fits."""

    def __init__(self, name: str, n_threads: int, chunks_max: int, run: Callable[[J], None]) -> None:
        self._name = name
        self._chunks_max = chunks_max
        self._run = run
        self._waiting: deque[J] = deque()
        self._n_chunks = 0
        self._n_running = 0
        self._is_closed = False
        self.is_halted = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._threads = [
            threading.Thread(target=self._take, name=f"tiered-{name}-{i}", daemon=True) for i in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def offer(self, job: J) -> bool:
        """Never blocks; False when there is no room."""
        with self._lock:
            is_full = self._waiting and self._n_chunks + job.n_chunks > self._chunks_max
            if self._is_closed or self.is_halted or is_full:
                return False
            self._waiting.append(job)
            self._n_chunks += job.n_chunks
            self._changed.notify_all()
        return True

    def halt(self) -> list[J]:
        """Begin nothing more; the jobs that had not begun."""
        with self._lock:
            self.is_halted = True
            waiting, self._waiting, self._n_chunks = list(self._waiting), deque(), 0
        return waiting

    def resume(self) -> None:
        with self._lock:
            self.is_halted = False

    def wait_idle(self) -> None:
        with self._lock:
            while self._n_running:
                if not self._changed.wait(SAY_AFTER_S):
                    _log.warning("still waiting for jobs that run", lane=self._name, n_jobs=self._n_running)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _take(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    if self._is_closed:
                        return
                    self._changed.wait()
                job = self._waiting.popleft()
                self._n_chunks -= job.n_chunks
                self._n_running += 1
            try:
                self._run(job)
            finally:
                with self._lock:
                    self._n_running -= 1
                    self._changed.notify_all()
