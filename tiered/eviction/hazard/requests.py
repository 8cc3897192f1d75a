"""How a request changes what is known: what it takes over from others, what it goes on with, what its caller says.

Functions over the book, one a verb. They decide which conversation a request belongs to; no session id is needed.
"""

from __future__ import annotations

from typing import Final

from tiered.eviction.hazard.book import Book
from tiered.eviction.hazard.learning import runs_of
from tiered.eviction.hazard.memory import Walk
from tiered.eviction.hazard.segment import Segment
from tiered.types import Continues, Hints

OLD_GAPS: Final = 0.7
"""Weight of the earlier gaps between turns in the mean of a conversation's gaps."""


def begin(book: Book, request: int, walk: Walk, hints: Hints, *, looked_up: bool) -> None:
    """A request that is not the rest of one before."""
    book.make_current(None)
    if book.n_requests and book.n_requests % book.parameters.refresh_requests == 0:
        book.refresh()
    book.n_requests += 1
    number = book.count_use()
    segment = Segment(number=number, used_at=number, began_at=book.now, since=book.now, looked_up=looked_up)
    before = _previous_turn(walk)
    if before is not None:
        segment.turn = before.turn + 1
        segment.gap_s = max(0.0, book.now - before.ended_at)
        if before.turn > 1:
            segment.mean_gap_s = OLD_GAPS * before.mean_gap_s + (1.0 - OLD_GAPS) * segment.gap_s
        else:
            segment.mean_gap_s = segment.gap_s
    n_lru_hits = _take_over(book, walk, before)
    capacity = book.capacity()
    book.shadow.use(number, len(walk.path), capacity=capacity)
    book.safety.note_request(n_blocks=len(walk.path), n_known=walk.n_known, hits=walk.n_here, lru_hits=n_lru_hits)
    blocks = book.memory.own(segment, walk, 0)
    book.memory.begin(segment)
    if before is None:
        for block in blocks:
            block.n_starts += 1
    for block in blocks[walk.n_known :]:
        block.n_starts = 1
    segment.n_new = len(blocks) - walk.n_known
    segment.first_unshared = next((i for i, block in enumerate(blocks) if block.n_starts < 2), len(blocks))
    segment.runs = runs_of(blocks, 0)
    take_hints(book, segment, hints)
    book.learning.rates.note_request(segment.n_new)
    book.ages.run(segment, request, book.now)
    book.learning.classify(segment)
    book.make_current(segment)
    book.forget_ghosts()


def goes_on(before: Segment, walk: Walk) -> bool:
    """Whether a save of this path is the rest of the request that used the path's known part last.

    Who looks up before saving has told of the request then. Who only saves tells of a new request each time, unless
    the one before is still under way.
    """
    ends_there = walk.n_known == before.length or len(walk.path) == walk.n_known
    return ends_there and not before.unnamed and (before.looked_up or before.is_running)


def go_on(book: Book, segment: Segment, request: int, walk: Walk, hints: Hints) -> None:
    """The rest of a request: under another name, and perhaps with its answer's blocks."""
    book.learning.note_waiting(segment, book.now)
    book.ages.run(segment, request, book.now)
    take_hints(book, segment, hints)
    n_more = len(walk.path) - segment.length
    if n_more > 0:
        n_known = segment.length
        _take_over(book, walk, None, first=n_known)
        for block in book.memory.own(segment, walk, n_known):
            block.n_starts = 1
        segment.runs = runs_of(segment.blocks, segment.start)
        book.shadow.grow(segment.number, n_more)
    book.learning.classify(segment)
    book.make_current(segment)
    book.forget_ghosts()


def take_hints(book: Book, segment: Segment, hints: Hints) -> None:
    """What is said later counts; what is not said again stays."""
    if hints.continues is not Continues.UNKNOWN:
        segment.continues = hints.continues
    if hints.ttl_s is not None:
        segment.ttl_s = hints.ttl_s
    if hints.labels:
        segment.labels = hints.labels
    if hints.output_tokens is not None:
        segment.output_tokens = hints.output_tokens
    if hints.session:
        if book.sessions.get(segment.session) is segment:
            del book.sessions[segment.session]
        segment.session = hints.session
        book.sessions[hints.session] = segment


def _previous_turn(walk: Walk) -> Segment | None:
    """The request of which this one is the next turn.

    It used the end of what is known of the path, most of its own path is in this one, and either nobody else's
    conversation went through there, or all of it is there but perhaps a partial last block.
    """
    before, n_known = walk.last_owner(), walk.n_known
    if before is None or before.unnamed or n_known < 2 or 2 * n_known < before.length:
        return None
    end = walk.blocks[n_known - 1]
    assert end is not None
    return before if end.n_starts <= 1 or n_known >= before.length - 1 else None


def _take_over(book: Book, walk: Walk, before: Segment | None, *, first: int = 0) -> int:
    """What others own of the path becomes free for a new owner; returns how much of it LRU would have held."""
    n_lru_hits = 0
    learning = book.learning
    for span in walk.spans:
        if span.first < first:
            continue
        owner = span.owner
        learning.note_waiting(owner, book.now)
        learning.note_return(owner, 1 if owner.unnamed else span.stop)
        if owner is before:
            learning.note_next_turn(owner, span.stop)
        if owner.unnamed:
            book.bury(owner)
            continue
        n_lru_hits += book.shadow.leave(owner.number, span.stop - span.first)
        owner.yield_up_to(span.stop)
        if owner.is_alive:
            book.file(owner)
        else:
            book.bury(owner)
    return n_lru_hits
