"""The kinds of values that a server keeps, and how parts of them look in its replies."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class SortedSet:
    scores: dict[bytes, float] = field(default_factory=dict)
    order: list[tuple[float, bytes]] = field(default_factory=list)

    def put(self, member: bytes, score: float) -> bool:
        before = self.scores.get(member)
        if before is not None:
            if before == score:
                return False
            self._take(member, before)
        self.scores[member] = score
        insort(self.order, (score, member))
        return before is None

    def drop(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        self._take(member, score)
        return True

    def _take(self, member: bytes, score: float) -> None:
        del self.order[bisect_left(self.order, (score, member))]


@dataclass(slots=True)
class Stream:
    entries: list[tuple[int, tuple[bytes, ...]]] = field(default_factory=list)
    """The number after ``0-`` and the fields, flat."""
    last: int = 0


class Members(dict[bytes, None]):
    """A set that keeps the order in which its members came."""


def score_text(score: float) -> bytes:
    return b"%d" % score if score.is_integer() else repr(score).encode()


def places(first: int, last: int, n: int) -> tuple[int, int]:
    start = max(0, first + n if first < 0 else first)
    end = (last + n if last < 0 else last) + 1
    return start, max(start, end)


def members_of(found: Sequence[tuple[float, bytes]], *, with_scores: bool) -> list[bytes]:
    if not with_scores:
        return [member for _, member in found]
    return [word for score, member in found for word in (member, score_text(score))]


def entry_of(entry: tuple[int, tuple[bytes, ...]]) -> list[Any]:
    return [b"0-%d" % entry[0], list(entry[1])]


def seq_of(text: bytes) -> int:
    return int(text.partition(b"-")[2])
