"""pump: one turn of the seam. What has finished goes in, what should move goes out, nothing blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tiered.core.core import CacheCore
from tiered.core.demote import apply_copy, tend
from tiered.core.promote import apply_fetch, step_all
from tiered.jobs import Completion, CopyDone, FetchDone, FetchJob, Job


class Seam(Protocol):
    """The core's side of a handoff."""

    def submit(self, jobs: Iterable[Job]) -> list[Job]: ...

    def poll(self) -> list[Completion]: ...


def pump(core: CacheCore, seam: Seam) -> None:
    """Apply completions, move loads on, work ahead of need, and submit the jobs that follow.

    A job that the queue has no room for ends at once: a demotion becomes a plain eviction, a fetch a miss.
    """
    for completion in seam.poll():
        if isinstance(completion, FetchDone):
            apply_fetch(core, completion)
        else:
            apply_copy(core, completion)
    step_all(core)
    tend(core)
    while refused := seam.submit(core.drain_jobs()):
        for job in refused:
            if isinstance(job, FetchJob):
                apply_fetch(core, FetchDone(job.ticket, (None,) * len(job.hashes)))
            else:
                apply_copy(core, CopyDone(job.ticket, copied=False))
        step_all(core)
