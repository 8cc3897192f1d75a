"""Two bounded queues: submit/poll for the core's host, take/finish for the movers. Thread-safe."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable

from tiered.jobs import Completion, DemoteJob, FetchJob, Job


class Handoff:
    """Jobs wait in one bounded lane per kind, so that a slow fetch never holds up a copy.

    notify: called from a mover's thread after each completion; wakes the host, which then polls.
    """

    def __init__(self, *, queue_jobs_max: int, notify: Callable[[], None]) -> None:
        self._fetches: queue.Queue[FetchJob | None] = queue.Queue(queue_jobs_max)
        self._copies: queue.Queue[DemoteJob | None] = queue.Queue(queue_jobs_max)
        self._completions: list[Completion] = []
        self._stopped = False
        self._lock = threading.Lock()
        self._notify = notify

    def submit(self, jobs: Iterable[Job]) -> list[Job]:
        """Hand over; returns the jobs there was no room for, all of them after a stop. Never blocks."""
        refused: list[Job] = []
        with self._lock:  # so that none slips in behind a stop, where nobody would run or answer it
            if self._stopped:
                return list(jobs)
            for job in jobs:
                try:
                    if isinstance(job, FetchJob):
                        self._fetches.put_nowait(job)
                    else:
                        self._copies.put_nowait(job)
                except queue.Full:
                    refused.append(job)
        return refused

    def poll(self) -> list[Completion]:
        """All completions since the last poll."""
        if not self._completions:  # as a rule; what comes this very moment wakes the core once more
            return []
        with self._lock:
            completions, self._completions = self._completions, []
        return completions

    def take_fetch(self) -> FetchJob | None:
        """The next fetch; blocks, and returns None when the movers are to stop."""
        return self._fetches.get()

    def take_copy(self) -> DemoteJob | None:
        return self._copies.get()

    def finish(self, completion: Completion) -> None:
        with self._lock:
            self._completions.append(completion)
        self._notify()

    def stop(self, *, n_fetchers: int, n_copiers: int) -> list[Job]:
        """Empty both lanes and tell every mover to end; returns the jobs nobody will run."""
        with self._lock:
            self._stopped = True
            dropped: list[Job] = [*_drain(self._fetches), *_drain(self._copies)]
        for _ in range(n_fetchers):
            self._fetches.put(None)
        for _ in range(n_copiers):
            self._copies.put(None)
        return dropped


def _drain(lane: queue.Queue[FetchJob | None] | queue.Queue[DemoteJob | None]) -> list[Job]:
    drained: list[Job] = []
    while True:
        try:
            job = lane.get_nowait()
        except queue.Empty:
            return drained
        if job is not None:
            drained.append(job)
