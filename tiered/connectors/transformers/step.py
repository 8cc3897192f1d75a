"""One forward of a batch: where its new keys and values go, and how a layer reads all of them.

Owns the indices, made once and used by every layer. Two ways to read: attention straight from the blocks, or the keys
and values gathered as transformers lays them out, padding as zeros, for attention that is the model's own.
"""

from __future__ import annotations

from functools import cached_property

import torch

from tiered.attention import PagedBatch, paged_attention, write_kv
from tiered.attention.paged import gather_planes
from tiered.connectors.transformers.rows import BatchRows, Blocks, Writes


class Step:
    """Built when the blocks are reserved, before any layer writes; valid until the rows change."""

    def __init__(self, rows: BatchRows, writes: Writes, n_columns: int) -> None:
        self.n_rows = len(rows)
        self.n_columns = n_columns
        self.before = rows.columns
        self.written: set[int] = set()
        self._own: Blocks = rows.own
        self._paddings = rows.paddings
        self._tables = [row.blocks for row in rows.rows]
        self._slots = self._own.index(writes.slots)
        all_write = len(writes.sources) == self.n_rows * n_columns
        self._sources = None if all_write else self._own.index(writes.sources)
        self._gathers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def after(self) -> int:
        return self.before + self.n_columns

    @property
    def n_queries(self) -> int:
        """Tokens among the new columns of all rows."""
        return sum(self._query_lens)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Shapes: both are (n_rows, n_kv_heads, n_columns, head_dim); those of padding go nowhere."""
        packed = [self._packed(states.detach().transpose(1, 2)) for states in (keys, values)]
        write_kv(self._own.tensor, layer, self._slots, packed[0], packed[1])
        self.written.add(layer)

    def attend(self, queries: torch.Tensor, layer: int, *, scale: float | None) -> torch.Tensor:
        """Causal attention over all tokens of each row, in place.

        Shapes: queries is (n_rows, n_heads, n_columns, head_dim); returns (n_rows, n_columns, n_heads, head_dim), of
                which padding's are zeros.
        """
        columns_first = queries.transpose(1, 2)
        if not any(self._query_lens):
            return torch.zeros_like(columns_first)
        found = paged_attention(self._queries_of(columns_first), self._own.tensor, layer, self._batch, scale=scale)
        if self._queries is None:
            return found.view(columns_first.shape)
        out = torch.zeros(columns_first.shape, dtype=found.dtype, device=found.device)
        out.flatten(0, 1).index_copy_(0, self._queries, found)
        return out

    def gather(self, layer: int, *, first_column: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the columns from ``first_column`` on.

        Shapes: each is (n_rows, n_kv_heads, n_columns, head_dim).
        """
        if any(self._paddings):
            planes = self._gather_tokens(layer, first_column)
        else:
            planes = self._gather_blocks(layer, first_column)
        return planes[0].transpose(1, 2), planes[1].transpose(1, 2)

    def _packed(self, by_column: torch.Tensor) -> torch.Tensor:
        """(n_rows, n_columns, ...) as the list of those that are written."""
        flat = by_column.flatten(0, 1)
        return flat if self._sources is None else flat.index_select(0, self._sources)

    def _queries_of(self, by_column: torch.Tensor) -> torch.Tensor:
        flat = by_column.flatten(0, 1)
        return flat if self._queries is None else flat.index_select(0, self._queries)

    @cached_property
    def _query_lens(self) -> list[int]:
        """Tokens among the new columns of each row."""
        return [max(0, self.after - max(padding, self.before)) for padding in self._paddings]

    @cached_property
    def _queries(self) -> torch.Tensor | None:
        """Which of all rows' new columns are tokens; None when all are."""
        if min(self._query_lens) == self.n_columns:
            return None
        ends = range(self.n_columns, (self.n_rows + 1) * self.n_columns, self.n_columns)
        return self._own.index(
            [column for end, n in zip(ends, self._query_lens, strict=True) for column in range(end - n, end)]
        )

    @cached_property
    def _table(self) -> torch.Tensor:
        """(n_rows, most blocks of any); shorter rows end with block 0, which is not read."""
        widest = max(1, *(len(table) for table in self._tables))
        return self._own.index([block for table in self._tables for block in _filled(table, widest)]).view(-1, widest)

    @cached_property
    def _batch(self) -> PagedBatch:
        lengths = [max(0, self.after - padding) for padding in self._paddings]
        # Rows without a query are skipped, but their lengths must fit the table all the same.
        return PagedBatch(
            self._table,
            self._own.index(lengths),
            self._own.index(self._query_lens),
            query_len_max=max(1, *self._query_lens),
        )

    def _gather_blocks(self, layer: int, first_column: int) -> list[torch.Tensor]:
        """Rows without padding have their tokens at the same places of their blocks, so whole blocks are copied."""
        block_tokens = self._own.layout.block_tokens
        table = self._table[:, first_column // block_tokens :]
        start = first_column % block_tokens
        return [
            plane.view(self.n_rows, -1, *plane.shape[1:])[:, start : start + self.after - first_column]
            for plane in gather_planes(self._own.tensor, layer, table.flatten())
        ]

    def _gather_tokens(self, layer: int, first_column: int) -> list[torch.Tensor]:
        if first_column not in self._gathers:
            self._gathers[first_column] = self._token_rows(first_column)
        rows, is_padding = self._gathers[first_column]
        n_planes, block_tokens, *token = self._own.tensor.shape[2:]
        tokens = self._own.tensor.view(-1, *token)
        planes = []
        for plane in range(n_planes):
            found = tokens.index_select(0, rows + (layer * n_planes + plane) * block_tokens)
            found = found.masked_fill_(is_padding[:, None, None], 0.0)
            planes.append(found.view(self.n_rows, -1, *token))
        return planes

    def _token_rows(self, first_column: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where in layer 0's first plane each column's token lies, and which columns are padding."""
        _, n_layers, n_planes, block_tokens, *_ = self._own.tensor.shape
        columns = torch.arange(first_column, self.after, device=self._table.device)
        tokens = columns - self._own.index(self._paddings)[:, None]
        places = tokens.clamp(min=0)
        blocks = self._table.gather(1, places // block_tokens)
        rows = blocks * (n_layers * n_planes * block_tokens) + places % block_tokens
        return rows.flatten(), (tokens < 0).flatten()


def _filled(table: list[int], n_blocks: int) -> list[int]:
    return table + [0] * (n_blocks - len(table))
