"""The rows of a batch as block tables: fork, cut, and room for the tokens of the next forward.

transformers counts in columns: all rows of a batch are equally long, shorter ones begin with padding. Blocks hold
tokens only: token 0 of a row, whatever its padding, is the first of its first block, so that a row's full blocks are
those of its tokens. Owns the way from columns to blocks. Refuses to know which tokens they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from tiered.connectors.transformers.own import OwnBlocks
from tiered.layout import KvLayout


@dataclass(slots=True)
class Row:
    """padding: columns before its first token. blocks: of all its tokens, the last perhaps filled in part."""

    padding: int
    blocks: list[int] = field(default_factory=list)

    def n_tokens(self, columns: int) -> int:
        return max(0, columns - self.padding)


@dataclass(frozen=True, slots=True)
class Writes:
    """Where one forward's keys and values go: those at ``sources``, counted through all rows, into ``slots``."""

    sources: list[int]
    slots: list[int]


class Blocks(Protocol):
    """Memory that rows lie in."""

    layout: KvLayout

    @property
    def tensor(self) -> torch.Tensor: ...

    def index(self, blocks: Sequence[int]) -> torch.Tensor: ...


class BatchRows(Protocol):
    """What a step reads of rows, wherever they lie."""

    @property
    def own(self) -> Blocks: ...

    @property
    def rows(self) -> Sequence[Row]: ...

    @property
    def columns(self) -> int: ...

    @property
    def paddings(self) -> list[int]: ...

    def __len__(self) -> int: ...


class RowTable:
    """What is common to rows wherever they lie. ``columns`` are those whose keys and values are in every layer."""

    rows: Sequence[Row]
    columns: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def paddings(self) -> list[int]:
        return [row.padding for row in self.rows]

    def pad(self, paddings: Sequence[int]) -> None:
        """More padding for rows that have no token yet: a first chunk may be padding alone, and not all of it."""
        for row, padding in zip(self.rows, paddings, strict=True):
            if row.padding >= self.columns:
                row.padding = max(row.padding, padding)


class Rows(RowTable):
    """In memory of the engine's own."""

    def __init__(self, own: OwnBlocks) -> None:
        self.own = own
        self.rows: list[Row] = []
        self.columns = 0

    @property
    def n_blocks(self) -> int:
        """Blocks that rows hold; one that several share counts once."""
        return self.own.n_used

    def begin(self, paddings: Sequence[int]) -> None:
        """Empty rows, in place of those there are."""
        self.clear()
        self.rows = [Row(padding) for padding in paddings]

    def clear(self) -> None:
        for row in self.rows:
            self.own.give_back(row.blocks)
        self.rows, self.columns = [], 0

    def reserve(self, n_columns: int, *, copies: int = 1) -> Writes:
        """Blocks for the next columns. What a row shares with another is copied before it can be written into.

        copies: each row becomes so many, one after the other, that share these columns too: the first of them writes.
        """
        sources: list[int] = []
        slots: list[int] = []
        before, after = self.columns, self.columns + n_columns
        block_tokens = self.own.layout.block_tokens
        for index, row in enumerate(self.rows):
            first, end = row.n_tokens(before), row.n_tokens(after)
            if first == end:
                continue
            if first % block_tokens and self.own.is_shared(open_block := row.blocks[first // block_tokens]):
                row.blocks[first // block_tokens] = self.own.split(open_block)
            row.blocks += self.own.take(-(-end // block_tokens) - len(row.blocks))
            last_source = (index * copies + 1) * n_columns
            sources += range(last_source - (end - first), last_source)
            slots += [
                row.blocks[token // block_tokens] * block_tokens + token % block_tokens for token in range(first, end)
            ]
        self.repeat(copies)
        return Writes(sources, slots)

    def finish(self, columns: int) -> None:
        """What was reserved up to ``columns`` is written, in all layers."""
        self.columns = columns

    def repeat(self, times: int) -> None:
        """Each row becomes so many, one after the other."""
        if times != 1:
            self.select([index for index in range(len(self.rows)) for _ in range(times)])

    def select(self, indices: Sequence[int]) -> None:
        """Rows ``indices`` in this order, in place of those there are; one that comes twice is forked.

        Errors: IndexError for a row that there is not.
        """
        picked = [self.rows[index] for index in indices]
        for row in picked:
            self.own.share(row.blocks)
        for row in self.rows:
            self.own.give_back(row.blocks)
        self.rows = [Row(row.padding, list(row.blocks)) for row in picked]

    def cut(self, columns: int) -> None:
        """Keep the first ``columns``; blocks reserved beyond them are given back, too."""
        self.columns = columns
        for row in self.rows:
            n_blocks = -(-row.n_tokens(columns) // self.own.layout.block_tokens)
            self.own.give_back(row.blocks[n_blocks:])
            del row.blocks[n_blocks:]
