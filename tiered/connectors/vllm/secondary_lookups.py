"""What is known of chunks in Redis, for a scheduler that asks at each step and must never wait.

A question without an answer is answered RETRY and goes out with the others of the same scheduling pass; a request is
held up so for a bounded time, and gets MISS after it. Answers are believed for a moment only, and a chunk that could
not be loaded is a MISS to the request that wanted it, for as long as that lives. Decisions on one thread; takes
``now``, asks nobody.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tiered.types import BlockHash

BELIEVED_S: Final = 1.0
"""An answer is as good as new for this long. A stale HIT costs one failed load, a stale MISS one recomputation."""

KEPT_S: Final = 60.0
"""An old answer still serves a request that cannot wait for a new one."""

CHUNKS_MAX: Final = 1 << 16
"""Known at one time, some 20 MB; what would be one more is a MISS."""

SWEPT_PER_PASS: Final = 256


class Answer(enum.Enum):
    HIT = "hit"
    MISS = "miss"
    RETRY = "retry"


@dataclass(slots=True)
class _Known:
    """answer: the last one, None before the first. asked: whether a question is out, or about to go."""

    asked: bool = False
    answer: Answer | None = None
    at: float = 0.0


@dataclass(slots=True)
class _Request:
    """waits_since: the first RETRY of a run of passes with one in each; None while nothing is waited for."""

    waits_since: float | None = None
    failed: set[BlockHash] = field(default_factory=set)


class Lookups:
    def __init__(self, *, wait_s: float, chunks_max: int = CHUNKS_MAX) -> None:
        self._wait_s = wait_s
        self._chunks_max = chunks_max
        self._known: dict[BlockHash, _Known] = {}
        self._requests: dict[str, _Request] = {}
        self._to_ask: list[BlockHash] = []
        self._asked_now: set[str] = set()
        self._retried_now: set[str] = set()

    def begin(self, request: str) -> None:
        self._requests.setdefault(request, _Request())

    def end(self, request: str) -> None:
        self._requests.pop(request, None)
        self._asked_now.discard(request)
        self._retried_now.discard(request)

    def ask(self, block_hash: BlockHash, request: str, *, now: float, is_down: bool) -> Answer:
        """is_down: Redis is known not to answer: nothing is waited for, and a HIT could not be loaded."""
        asking = self._requests.get(request)
        if asking is None:
            asking = self._requests[request] = _Request()
        self._asked_now.add(request)
        if is_down or block_hash in asking.failed:
            return Answer.MISS
        known = self._known.get(block_hash)
        if known is not None and known.answer is not None and now < known.at + BELIEVED_S:
            return known.answer
        if known is None:
            if len(self._known) >= self._chunks_max:
                return Answer.MISS
            known = self._known[block_hash] = _Known(at=now)
        if not known.asked:
            known.asked = True
            self._to_ask.append(block_hash)
        if asking.waits_since is None:
            asking.waits_since = now
        if now < asking.waits_since + self._wait_s:
            self._retried_now.add(request)
            return Answer.RETRY
        return known.answer or Answer.MISS

    def end_pass(self, now: float) -> list[BlockHash]:
        """A scheduling pass is over: what is to be asked now, in one go."""
        for request in self._asked_now - self._retried_now:
            self._requests[request].waits_since = None
        self._asked_now.clear()
        self._retried_now.clear()
        self._sweep(now)
        questions, self._to_ask = self._to_ask, []
        return questions

    def answered(self, answers: Mapping[BlockHash, bool], *, now: float) -> None:
        for block_hash, is_there in answers.items():
            known = self._known.pop(block_hash, None) or _Known()  # to the end: in order of their age
            known.asked, known.answer, known.at = False, Answer.HIT if is_there else Answer.MISS, now
            self._known[block_hash] = known

    def unanswered(self, hashes: Sequence[BlockHash], *, now: float) -> None:
        """Nobody said anything: a MISS, as if it were one."""
        self.answered(dict.fromkeys(hashes, False), now=now)

    def failed(self, hashes: Iterable[BlockHash], request: str) -> None:
        """Chunks that were said to be there could not be loaded for this request; others ask for them anew."""
        hashes = list(hashes)
        asking = self._requests.get(request)
        if asking is not None:
            asking.failed.update(hashes)
        self.changed(hashes)

    def changed(self, hashes: Iterable[BlockHash]) -> None:
        """What was known of these is not true any more."""
        for block_hash in hashes:
            known = self._known.get(block_hash)
            if known is not None and not known.asked:
                del self._known[block_hash]

    @property
    def n_known(self) -> int:
        return len(self._known)

    @property
    def n_requests(self) -> int:
        return len(self._requests)

    def _sweep(self, now: float) -> None:
        """Forget some of what was known longest ago; what a question is out for stays until that is answered."""
        old: list[BlockHash] = []
        for looked_at, (block_hash, known) in enumerate(self._known.items()):
            if looked_at == SWEPT_PER_PASS or now < known.at + KEPT_S:
                break
            if not known.asked:
                old.append(block_hash)
        for block_hash in old:
            del self._known[block_hash]
