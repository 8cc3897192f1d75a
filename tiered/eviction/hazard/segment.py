"""What the hazard-index policy remembers: blocks by content, and the request that used each of them last.

A segment is one request: of its path it still owns what no later request has used, always the deep end. So every
known block has one owner, and what may leave of a segment is the deepest of its cached blocks. Records only: who
changes them, and when, is said elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tiered.eviction.hazard.classes import RUNNING
from tiered.types import BlockHash, BlockId, Continues

Run: TypeAlias = tuple[int, int, int]
"""Blocks of one class in a path: from this index, up to that one, and the class."""


@dataclass(slots=True, eq=False)
class Block:
    """A block that some request named, or that is here without one.

    index:    its place in every path that has it; 0 while no request has named it.
    n_starts: conversations that started through it.
    block_id: None while it is not cached: a ghost.
    """

    key: BlockHash
    index: int = 0
    n_starts: int = 0
    block_id: BlockId | None = None
    owner: Segment = field(init=False, repr=False)


@dataclass(slots=True, eq=False)
class Segment:
    """One request and what it owns: ``blocks``, which are ``path[start:length]``.

    number:         names it for good; larger is newer.
    cached_end:     index after the deepest cached block it owns; at most ``start`` when none is.
    runs:           classes along the path; what lies before ``start`` is void.
    n_new:          blocks that nobody had named before.
    first_unshared: index after the blocks that are the beginning of several conversations.
    used_at:        of its newest use, for recency: counts uses.
    began_at, ended_at, since: seconds; ``since`` is up to when its time in this age bin has been counted.
    names:          the requests under way that are this one.
    is_settled:     how it went on is known, so nothing more is learned from its waiting.
    """

    number: int
    began_at: float
    used_at: int
    blocks: list[Block] = field(default_factory=list)
    length: int = 0
    start: int = 0
    cached_end: int = 0
    runs: list[Run] = field(default_factory=list)
    age_bin: int = RUNNING
    since: float = 0.0
    ended_at: float = 0.0
    turn: int = 1
    gap_s: float = 0.0
    mean_gap_s: float = 0.0
    n_new: int = 0
    first_unshared: int = 0
    features: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    looked_up: bool = False
    unnamed: bool = False
    is_settled: bool = False
    is_closed: bool = False
    labels: tuple[str, ...] = ()
    continues: Continues = Continues.UNKNOWN
    ttl_s: float | None = None
    session: str = ""
    output_tokens: int | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it owns anything."""
        return self.start < self.length

    @property
    def is_running(self) -> bool:
        return self.age_bin == RUNNING

    def tail(self) -> Block | None:
        """The deepest cached block it owns."""
        return self.blocks[self.cached_end - 1 - self.start] if self.cached_end > self.start else None

    def tail_class(self) -> int:
        """Of that block."""
        index = self.cached_end - 1
        for first, stop, block_class in self.runs:
            if first <= index < stop:
                return block_class
        raise AssertionError(f"block {index} of segment {self.number} has no class")

    def yield_up_to(self, stop: int) -> None:
        """Another request has used its first blocks, up to that index."""
        del self.blocks[: stop - self.start]
        self.start = stop

    def cut(self, length: int) -> None:
        """Its path ends there now."""
        del self.blocks[length - self.start :]
        self.length = length
        self.runs = [(first, min(stop, length), of) for first, stop, of in self.runs if first < length]

    def settle_tail(self) -> None:
        """The block at ``cached_end`` left: find the deepest one that is still here."""
        while self.cached_end > self.start and self.blocks[self.cached_end - 1 - self.start].block_id is None:
            self.cached_end -= 1
