"""Two bounded queues: submit/poll for the core's host, take/finish for the movers. Thread-safe.

Owns what waits, in which order it is taken, and how many movers one origin may hold at a time; does not know what a
job's bytes are or how they move.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tiered.jobs import Completion, DemoteJob, FetchDone, FetchJob, Job, Origin
from tiered.types import Ticket


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How many fetches may run at one time, so that an origin that is stuck holds few movers.

    With ``redis`` + 1 movers or more a stuck Redis never keeps a peer waiting; with ``peers`` + 1 or more stuck peers
    never keep Redis waiting, nor, unless there are ``peers / one_peer`` of them, another peer.
    """

    redis: int = 3
    """Two threads already saturate a server; the third is for when one waits."""
    one_peer: int = 2
    """Streams from one peer: two fill a loopback or a fast network, and the peer has others to serve."""
    peers: int = 6
    """From all of them together."""

    def allow(self, origin: Origin, running: Counter[Origin], n_peer_jobs: int) -> bool:
        if origin.peer is None:
            return running[origin] < self.redis
        return running[origin] < self.one_peer and n_peer_jobs < self.peers


class Handoff:
    """Jobs wait in one bounded lane per kind, so that a slow fetch never holds up a copy.

    Fetches from one origin are taken in order; those whose origin has its share of movers are passed over.
    notify: called from a mover's thread after each completion; wakes the host, which then polls.
    """

    def __init__(self, *, queue_jobs_max: int, notify: Callable[[], None], limits: FetchLimits | None = None) -> None:
        self._queue_jobs_max = queue_jobs_max
        self._limits = limits or FetchLimits()
        self._fetches: deque[FetchJob] = deque()
        self._copies: deque[DemoteJob] = deque()
        self._copies_since: dict[Ticket, float] = {}
        self._running: dict[Ticket, Origin] = {}
        self._by_origin: Counter[Origin] = Counter()
        self._completions: list[Completion] = []
        self._stopped = False
        self._lock = threading.Lock()
        self._fetchable = threading.Condition(self._lock)
        self._copyable = threading.Condition(self._lock)
        self._notify = notify

    def submit(self, jobs: Iterable[Job]) -> list[Job]:
        """Hand over; returns the jobs there was no room for, all of them after a stop. Never blocks."""
        refused: list[Job] = []
        with self._lock:  # so that none slips in behind a stop, where nobody would run or answer it
            for job in jobs:
                lane: deque[FetchJob] | deque[DemoteJob]
                lane = self._fetches if isinstance(job, FetchJob) else self._copies
                if self._stopped or len(lane) >= self._queue_jobs_max:
                    refused.append(job)
                elif isinstance(job, FetchJob):
                    self._fetches.append(job)
                    self._fetchable.notify()
                else:
                    self._copies.append(job)
                    self._copies_since[job.ticket] = time.monotonic()
                    self._copyable.notify()
        return refused

    def poll(self) -> list[Completion]:
        """All completions since the last poll."""
        if not self._completions:  # as a rule; what comes this very moment wakes the core once more
            return []
        with self._lock:
            completions, self._completions = self._completions, []
        return completions

    def take_fetch(self) -> FetchJob | None:
        """The first fetch whose origin may have another mover; blocks, and returns None when the movers are to stop.

        It counts against its origin until its completion is reported by :meth:`finish`.
        """
        with self._lock:
            while not self._stopped:
                job = self._next_fetch()
                if job is not None:
                    self._running[job.ticket] = job.origin
                    self._by_origin[job.origin] += 1
                    return job
                self._fetchable.wait()
        return None

    def take_copy(self) -> DemoteJob | None:
        """The next copy; blocks, and returns None when the movers are to stop."""
        with self._lock:
            while not self._stopped:
                if self._copies:
                    return self._copies.popleft()
                self._copyable.wait()
        return None

    def since(self, ticket: Ticket) -> float:
        """When the copy was handed over, by the monotonic clock; for who took it, once."""
        with self._lock:
            return self._copies_since.pop(ticket, time.monotonic())

    def finish(self, completion: Completion) -> None:
        with self._lock:
            self._completions.append(completion)
            origin = self._running.pop(completion.ticket, None) if isinstance(completion, FetchDone) else None
            if origin is not None:
                self._by_origin[origin] -= 1
                if not self._by_origin[origin]:
                    del self._by_origin[origin]  # lives of peers come and go
                self._fetchable.notify()
        self._notify()

    def stop(self) -> list[Job]:
        """Empty both lanes and tell every mover to end; returns the jobs nobody will run."""
        with self._lock:
            self._stopped = True
            dropped: list[Job] = [*self._fetches, *self._copies]
            self._fetches.clear()
            self._copies.clear()
            self._copies_since.clear()
            self._fetchable.notify_all()
            self._copyable.notify_all()
        return dropped

    def _next_fetch(self) -> FetchJob | None:
        n_peer_jobs = sum(n for origin, n in self._by_origin.items() if origin.peer is not None)
        for place, job in enumerate(self._fetches):
            if self._limits.allow(job.origin, self._by_origin, n_peer_jobs):
                del self._fetches[place]
                return job
        return None
