"""Every block that is known by its content, cached or remembered, and the segment that owns it.

Owns the two registers, of blocks and of segments, and forgets what left longest ago when too much is remembered.
Knows nothing of time, classes or order of eviction.

A path names whole prefixes, so a block has one place in all paths, and what an owner has of a path lies in one piece.
Where a caller's path contradicts that, the rest of it is left aside.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from tiered.eviction.hazard.segment import Block, Segment
from tiered.types import BlockHash, BlockId


@dataclass(frozen=True, slots=True)
class Span:
    """Known blocks of a path, ``[first, stop)``, that one request was the last to use."""

    owner: Segment
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Walk:
    """What is known of a path. n_known: blocks known from the first on; there may be more behind a gap.

    n_here: as many, from the first on, must be cached by somebody: one of ours is cached at their end.
    """

    path: Sequence[BlockHash]
    blocks: list[Block | None]
    spans: list[Span]
    n_known: int
    n_here: int

    def last_owner(self) -> Segment | None:
        """Who used the last of the known blocks."""
        end = self.blocks[self.n_known - 1] if self.n_known else None
        return None if end is None else end.owner


class Memory:
    def __init__(self) -> None:
        self.blocks: dict[BlockHash, Block] = {}
        self.cached: dict[BlockId, Block] = {}
        self._segments: OrderedDict[int, Segment] = OrderedDict()
        """Those that own something, oldest first; one that was looked through for ghosts is as good as new."""

    @property
    def n_ghosts(self) -> int:
        return len(self.blocks) - len(self.cached)

    @property
    def n_segments(self) -> int:
        return len(self._segments)

    def walk(self, path: Sequence[BlockHash]) -> Walk:
        """Look a path up. Changes nothing. Cost: O(blocks), most of it at the speed of C."""
        if len(set(path)) < len(path):
            path = path[: next(i for i in range(len(path)) if path[i] in path[:i])]
        blocks = list(map(self.blocks.get, path))
        spans: list[Span] = []
        index = n_known = n_here = 0
        is_gapless = True
        while index < len(blocks):
            block = blocks[index]
            if block is None:
                is_gapless = False
                index += 1
                continue
            stop = _end_of_span(blocks, index, block.owner)
            if stop == index:
                blocks, path = blocks[:index], path[:index]
                break
            spans.append(Span(block.owner, index, stop))
            if is_gapless:
                n_known = stop
                cached_end = block.owner.cached_end if not block.owner.unnamed else index + 1
                if cached_end > index:
                    n_here = min(stop, cached_end)
            index = stop
        return Walk(path, blocks, spans, n_known, n_here)

    def begin(self, segment: Segment) -> None:
        self._segments[segment.number] = segment

    def own(self, segment: Segment, walk: Walk, first: int) -> list[Block]:
        """Make the segment the owner of the path from ``first`` on; its earlier owners have yielded that.

        Returns those blocks.
        """
        mine: list[Block] = []
        register = self.blocks
        for index in range(first, len(walk.path)):
            block = walk.blocks[index]
            if block is None:
                key = walk.path[index]
                block = register[key] = Block(key)
            elif block.block_id is not None:
                segment.cached_end = index + 1
            block.owner, block.index = segment, index
            mine.append(block)
        segment.blocks.extend(mine)
        segment.length = len(walk.path)
        return mine

    def end(self, segment: Segment) -> None:
        """It owns nothing any more."""
        del self._segments[segment.number]

    def pass_oldest(self) -> Segment:
        """The oldest, which is as good as new from now on."""
        number, segment = next(iter(self._segments.items()))
        self._segments.move_to_end(number)
        return segment

    def forget_ghosts(self, segment: Segment) -> tuple[int, list[Block]]:
        """Forget what it owns and is not cached. Returns how many that were, and cached blocks that lost their place.

        It keeps its deepest piece without a gap. What is cached above a gap, as can be where several tenants hold
        parts of one path, belongs to nobody then.
        """
        stop = max(segment.start, segment.cached_end)
        first = stop
        while first > segment.start and segment.blocks[first - 1 - segment.start].block_id is not None:
            first -= 1
        gone = segment.blocks[: first - segment.start] + segment.blocks[stop - segment.start :]
        segment.cut(stop)
        segment.yield_up_to(first)
        left_over = []
        for block in gone:
            if block.block_id is None:
                del self.blocks[block.key]
            else:
                left_over.append(block)
        return len(gone) - len(left_over), left_over


def _end_of_span(blocks: Sequence[Block | None], first: int, owner: Segment) -> int:
    """Up to where the path has what the owner has, from the beginning of that; ``first`` if it contradicts it."""
    if owner.unnamed:
        return first + 1
    if owner.start != first:
        return first
    theirs = owner.blocks
    n_common = min(len(theirs), len(blocks) - first)
    if blocks[first : first + n_common] == theirs[:n_common]:
        return first + n_common
    return first + next(i for i in range(n_common) if blocks[first + i] is not theirs[i])
