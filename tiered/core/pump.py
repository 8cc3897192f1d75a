"""pump: one turn of the seam. What has finished goes in, what should move goes out, nothing blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tiered.core.allocate import Grant, Shortfall, allocate
from tiered.core.core import CacheCore
from tiered.core.demote import apply_copy, tend
from tiered.core.lease import Lease
from tiered.core.promote import apply_fetch, step_all
from tiered.core.sequences import append
from tiered.jobs import Completion, CopyDone, FetchDone, FetchJob, Job
from tiered.sequence.sequence import Appended, Extension, TokenSequence


class Seam(Protocol):
    """The core's side of a handoff."""

    def submit(self, jobs: Iterable[Job]) -> list[Job]: ...

    def poll(self) -> list[Completion]: ...


def pump(core: CacheCore, seam: Seam, *, now: float | None = None) -> None:
    """Apply completions, move loads on, work ahead of need, and submit the jobs that follow.

    A job that the queue has no room for ends at once: a demotion becomes a plain eviction, a fetch a miss.
    now: without it, what is measured of sources is measured less well.
    """
    if now is not None:
        core.now = max(core.now, now)
    for completion in seam.poll():
        if isinstance(completion, FetchDone):
            apply_fetch(core, completion)
        else:
            apply_copy(core, completion)
    step_all(core)
    tend(core)
    while core.jobs:
        refused = seam.submit(core.drain_jobs())
        for job in refused:
            if isinstance(job, FetchJob):
                apply_fetch(core, FetchDone(job.ticket, (None,) * len(job.hashes)))
            else:
                apply_copy(core, CopyDone(job.ticket, copied=False))
        if refused:  # no completion of theirs will come to go on from
            step_all(core)
            tend(core)


def take(core: CacheCore, seam: Seam, lease: Lease, *, n_blocks_max: int, force: bool) -> Grant:
    """allocate and one turn of the seam; once more where that turn has made the room, so that "soon" always means
    that a completion is still to come."""
    while True:
        grant = allocate(core, lease, n_blocks_max=n_blocks_max, force=force)
        pump(core, seam)
        if grant.block_ids or grant.shortfall is not Shortfall.SOON or core.leaving or core.recalled:
            return grant


def grow(
    core: CacheCore, seam: Seam, sequence: TokenSequence, extension: Extension, *, force: bool
) -> Appended | None:
    """append and one turn of the seam, as in :func:`take`; None while a completion is still to come."""
    while True:
        try:
            appended = append(core, sequence, extension, force=force)
        finally:
            pump(core, seam)
        if appended is not None or core.leaving or core.recalled:
            return appended
