"""The rows of a batch as sequences in the pool of this process: what is cached is read where it lies, what is
computed is written where it stays.

Owns the way from columns to sequences. Refuses to know what becomes of a batch that finds no room: that is said by
OutOfBlocks, after which the rows are as they were and may move to memory of their own.

What a row writes is its own until ``share``: a batch that fails is nobody's, and what ``generate`` fills up an ended
answer with is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from tiered.client.port import Saved
from tiered.client.sequences import SequenceHandle
from tiered.connectors.transformers.own import OwnBlocks
from tiered.connectors.transformers.rows import Row, Rows, RowTable, Writes
from tiered.hashing.chain import Extras
from tiered.layout import KvLayout
from tiered.types import BlockId, TenantId

if TYPE_CHECKING:
    from tiered.pool.pool import BlockPool


@runtime_checkable
class SequenceClient(Protocol):
    """A client whose hot tier is in this process."""

    @property
    def pool(self) -> BlockPool | None: ...

    def open_sequence(
        self, *, tenant: TenantId, extras: Extras | None = None, is_private: bool = False
    ) -> SequenceHandle: ...


class PoolBlocks:
    """The pool's memory as :class:`OwnBlocks` is: what a step reads and writes."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.layout: KvLayout = pool.layout

    @property
    def tensor(self) -> torch.Tensor:
        return self.pool.tensor

    def index(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.tensor.device)

    def copy_out(self, blocks: Sequence[int], pool: BlockPool, block_ids: Sequence[BlockId]) -> None:
        """Write blocks into slots of a pool, each whole."""
        pool.scatter(block_ids, self.tensor.index_select(0, self.index(blocks)))


@dataclass(slots=True)
class PooledRow(Row):
    """blocks: its sequence's. Rows that share a forward share its sequence until that has written."""

    sequence: SequenceHandle = field(kw_only=True)


class PooledRows(RowTable):
    """As :class:`Rows`, but that ``reserve`` needs the tokens, and ``finish`` is to be called when they are written.

    open_sequence: makes a private sequence of the batch's tenant.
    """

    def __init__(self, pool: BlockPool, open_sequence: Callable[[], SequenceHandle]) -> None:
        self.own = PoolBlocks(pool)
        self.rows: list[PooledRow] = []
        self.columns = 0
        self._open_sequence = open_sequence

    @property
    def n_blocks(self) -> int:
        """Blocks that rows hold; one that several share counts once."""
        return len({block for row in self.rows for block in row.blocks})

    def begin(self, paddings: Sequence[int]) -> None:
        """Empty rows, in place of those there are."""
        self.clear()
        for padding in paddings:
            self.rows.append(PooledRow(padding, sequence=self._open_sequence()))

    def take_over(self, tokens: Sequence[Sequence[int]], n_blocks: Sequence[int], columns: int) -> int:
        """Begin each row with its first blocks, which are pinned until this returns; how many columns all rows have.

        tokens: of each row, without padding. n_blocks: of each row, those of its tokens among the first ``columns``.
        Errors: OutOfBlocks where blocks are not there after all; the rows are then empty.
        """
        for row, of_row, n in zip(self.rows, tokens, n_blocks, strict=True):
            appended = row.sequence.append(of_row[: n * self.own.layout.block_tokens])
            columns = min(columns, row.padding + appended.first_token)
        self.cut(columns)
        return columns

    def clear(self) -> None:
        for sequence in self._sequences():
            sequence.drop()
        self.rows, self.columns = [], 0

    def forget(self) -> None:
        """As clear, from the garbage collector."""
        for sequence in self._sequences():
            sequence.forget()

    def reserve(self, n_columns: int, ids: torch.Tensor, *, copies: int = 1) -> Writes:
        """Blocks for the next columns. What is cached of them is not written again.

        ids: (n_rows * copies, n_columns); the first of each row's copies is read. copies: as in :meth:`Rows.reserve`.
        Errors: OutOfBlocks; the rows are then as they were.
        """
        sources: list[int] = []
        slots: list[int] = []
        before, after = self.columns, self.columns + n_columns
        try:
            for index, row in enumerate(self.rows):
                first, end = row.n_tokens(before), row.n_tokens(after)
                if first == end:
                    continue
                sequence = row.sequence
                appended = sequence.append(ids[index * copies, n_columns - (end - first) :].tolist())
                row.blocks = list(sequence.block_table)
                last_source = (index * copies + 1) * n_columns
                sources += range(last_source - appended.n_to_write, last_source)
                slots += sequence.slots(appended.first_token, end)
        except BaseException:
            self.cut(before)
            raise
        self.rows = [
            PooledRow(row.padding, row.blocks, sequence=row.sequence) for row in self.rows for _ in range(copies)
        ]
        return Writes(sources, slots)

    def finish(self, columns: int) -> None:
        """What was reserved up to ``columns`` is written, in all layers."""
        for sequence in self._sequences():
            sequence.written()
        self.columns = columns
        self._part()

    def repeat(self, times: int) -> None:
        """Each row becomes so many, one after the other."""
        if times != 1:
            self.select([index for index in range(len(self.rows)) for _ in range(times)])

    def select(self, indices: Sequence[int]) -> None:
        """As :meth:`Rows.select`."""
        picked = [self.rows[index] for index in indices]
        kept = {row.sequence for row in picked}
        for sequence in self._sequences():
            if sequence not in kept:
                sequence.drop()
        self.rows = [PooledRow(row.padding, list(row.blocks), sequence=row.sequence) for row in picked]
        self._part()

    def cut(self, columns: int) -> None:
        """As :meth:`Rows.cut`."""
        self.columns = columns
        for row in self.rows:
            sequence = row.sequence
            sequence.truncate(min(len(sequence), row.n_tokens(columns)))
            row.blocks = list(sequence.block_table)
        self._part()

    def share(self, index: int, n_tokens: int) -> Saved:
        """Let others find a row's full blocks of its first ``n_tokens``: as a save of them."""
        sequence = self.rows[index].sequence
        n_before = sequence.n_ready
        return Saved(n_stored=sequence.share(n_tokens), first_index=n_before, gave=sequence.gave)

    def moved_to(self, own: OwnBlocks) -> Rows:
        """The same rows in memory of their own; these are then empty."""
        moved = Rows(own)
        tables = own.copy_tables(self.own.pool, [[BlockId(block) for block in row.blocks] for row in self.rows])
        moved.rows = [Row(row.padding, table) for row, table in zip(self.rows, tables, strict=True)]
        moved.columns = self.columns
        self.clear()
        return moved

    def _sequences(self) -> list[SequenceHandle]:
        return list(dict.fromkeys(row.sequence for row in self.rows))

    def _part(self) -> None:
        """Rows that share a sequence get one each: it is written, so it can be forked."""
        seen: set[SequenceHandle] = set()
        for row in self.rows:
            sequence = row.sequence
            if sequence in seen:
                row.sequence = sequence = sequence.fork()
                row.blocks = list(row.blocks)
            seen.add(sequence)
