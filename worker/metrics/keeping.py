"""The families of what is kept beside the pool: the directory, second copies, the journal, the why-log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from tiered.metrics import worker as series
from worker.journal import JournalSnapshot
from worker.metrics.movement import from_zero
from worker.metrics.snapshot import CopiesSnapshot, DirectoryFacts, WhySnapshot

_NOT_ADOPTED: Final = ("corrupt", "orphan", "limit", "room", "time")


def directory_families(directory: DirectoryFacts) -> Iterator[Metric]:
    counters = directory.counters
    yield series.ANNOUNCED.one(counters.announced_blocks)
    yield series.UNANNOUNCED.one(directory.unannounced_blocks)
    yield series.DIFFERING.one(directory.differing)
    yield series.REPAIRS.one(counters.repairs)
    yield series.REPAIRED.one(counters.repaired_blocks)
    yield series.REFRESHED.one(counters.refreshed_blocks)


def copies_families(copies: CopiesSnapshot) -> Iterator[Metric]:
    yield series.SECONDS_LOOKED.one(copies.looked)
    yield series.SECONDS_MADE.one(copies.made)
    yield series.SECONDS_REFUSED.one(copies.refused)
    yield series.LOST_WAITING.one(copies.lost.waiting)
    yield series.LOST_DROPPED.one(copies.lost.dropped)
    yield series.LOST_BROUGHT.one(copies.lost.brought)


def journal_families(journal: JournalSnapshot) -> Iterator[Metric]:
    counters = journal.counters
    yield series.JOURNAL_WRITTEN.one(counters.written)
    yield series.JOURNAL_LOST.one(counters.lost)
    yield series.JOURNAL_PENDING.one(counters.pending)
    yield series.JOURNAL_FAILING.one(counters.failing)
    yield series.ADOPTED.one(journal.adopted)
    yield series.NOT_ADOPTED.by(from_zero(_NOT_ADOPTED, journal.left))
    yield series.WARMED.one(journal.warmed)


def why_families(why: WhySnapshot) -> Iterator[Metric]:
    yield series.WHY_EVENTS.one(why.n_events)
    yield series.WHY_BYTES.one(why.n_bytes)
    yield series.WHY_DROPPED.one(why.dropped)
