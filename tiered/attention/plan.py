"""How the CPU cuts one step into kernel calls: decodes of similar length together, each prefill chunk alone.

Knows lengths and block ids; refuses to know keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

GROUP_BYTES: Final = 3 << 19
"""Keys and values gathered at once for decodes, per thread: they are read again right away, so they should still lie
in a near cache. Four times as much was 1.1 to 1.6 times slower, a third of it 1.1 times."""

PADDING_MAX: Final = 1.25
"""A group computes at most this many times the tokens its sequences have: short ones do not wait for a long one."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences of one query each, computed in one call.

    Shapes: query_rows is (n,), into the packed queries. block_ids is (n * n_blocks,), shorter sequences filled up
            with blocks of their own. mask is (n, 1, 1, n_tokens), True where a token counts, or None when all have
            n_tokens. stale_rows are those of the n * n_blocks * block_tokens gathered tokens that do not count.
    """

    query_rows: torch.Tensor
    block_ids: torch.Tensor
    n_tokens: int
    mask: torch.Tensor | None
    stale_rows: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class LongDecode:
    """One sequence of one query, too long to be gathered at once. parts: its block ids; all but the last are equally
    many."""

    query_row: int
    n_tokens: int
    parts: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """The queries first_row ... first_row + n_queries of one sequence, which end where its n_tokens end."""

    first_row: int
    n_queries: int
    n_tokens: int
    block_ids: torch.Tensor


@dataclass(frozen=True, slots=True)
class HostPlan:
    n_queries: int
    decodes: tuple[DecodeGroup, ...]
    long_decodes: tuple[LongDecode, ...]
    prefills: tuple[PrefillChunk, ...]


def make_plan(
    block_table: torch.Tensor,
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    block_tokens: int,
    token_bytes: int,
) -> HostPlan:
    """Errors: ValueError for lengths that do not fit each other or the table."""
    room = block_table.shape[1] * block_tokens
    decodes: list[tuple[int, int, int]] = []  # tokens, sequence, row of its query
    long_decodes: list[LongDecode] = []
    tokens_max = max(block_tokens, GROUP_BYTES * torch.get_num_threads() // token_bytes)
    prefills: list[PrefillChunk] = []
    row = 0
    for sequence, (n_tokens, n_queries) in enumerate(zip(seq_lens, query_lens, strict=True)):
        if not 0 <= n_queries <= n_tokens <= room:
            raise ValueError(
                f"sequence {sequence}: {n_queries} queries at the end of {n_tokens} tokens in blocks for {room}; "
                "queries may not exceed tokens, nor tokens the block table"
            )
        ids = block_table[sequence, : -(-n_tokens // block_tokens)]
        if n_queries == 1 and n_tokens <= tokens_max:
            decodes.append((n_tokens, sequence, row))
        elif n_queries == 1:
            long_decodes.append(LongDecode(row, n_tokens, torch.split(ids, tokens_max // block_tokens)))
        elif n_queries:
            prefills.append(PrefillChunk(row, n_queries, n_tokens, ids))
        row += n_queries
    decodes.sort()
    groups = _group(decodes, tokens_max=tokens_max)
    return HostPlan(
        n_queries=row,
        decodes=tuple(_decode_group(block_table, group, block_tokens) for group in groups),
        long_decodes=tuple(long_decodes),
        prefills=tuple(prefills),
    )


def _group(decodes: Sequence[tuple[int, int, int]], *, tokens_max: int) -> list[list[tuple[int, int, int]]]:
    """Neighbours by length, as many as fit; ``decodes`` is sorted, so the last of a group is its longest."""
    groups: list[list[tuple[int, int, int]]] = []
    held = 0
    for decode in decodes:
        n_tokens = decode[0]
        computed = n_tokens * (len(groups[-1]) + 1) if groups else 0
        if groups and computed <= tokens_max and computed <= PADDING_MAX * (held + n_tokens):
            groups[-1].append(decode)
            held += n_tokens
        else:
            groups.append([decode])
            held = n_tokens
    return groups


def _decode_group(table: torch.Tensor, group: Sequence[tuple[int, int, int]], block_tokens: int) -> DecodeGroup:
    lengths = torch.tensor([n_tokens for n_tokens, _, _ in group])
    n_tokens = group[-1][0]
    n_blocks = -(-n_tokens // block_tokens)
    blocks = table[[sequence for _, sequence, _ in group], :n_blocks]
    own = torch.arange(n_blocks) < (-(-lengths // block_tokens))[:, None]
    ids = torch.where(own, blocks, blocks[:, :1]).flatten()
    rows = torch.tensor([row for _, _, row in group])
    if group[0][0] == n_tokens:
        return DecodeGroup(rows, ids, n_tokens, mask=None, stale_rows=None)
    # A masked token still takes part, times zero, and zero times what uninitialised memory may hold is not zero.
    positions = torch.arange(n_blocks * block_tokens)
    stale = (positions >= lengths[:, None]).flatten().nonzero().flatten()
    mask = (positions[:n_tokens] < lengths[:, None])[:, None, None]
    return DecodeGroup(rows, ids, n_tokens, mask=mask, stale_rows=stale)
