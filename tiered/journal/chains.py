"""Which prefixes to warm first: decided from rows alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiered.journal.rows import ROOT, JournalRow
from tiered.types import BlockHash, TenantId

KEEN: Final = 0.5
"""A child this much as hot as its parent is warmed in the same run."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Blocks of one prefix from its first on. n_known: those at its beginning that were named before."""

    scope_id: bytes
    tenants: tuple[TenantId, ...]
    hashes: tuple[BlockHash, ...]
    n_known: int


def hottest_chains(rows: Sequence[JournalRow], resident: Collection[BlockHash]) -> Iterator[Chain]:
    """Whole prefixes, those used most first; each ends in blocks that are neither resident nor in an earlier chain.

    Blocks that were never used again are not hot, and one whose prefix is not known to its root cannot be asked for.
    """
    known = {row.block_hash: row for row in rows}
    keenest: dict[BlockHash, JournalRow] = {}
    for row in rows:
        other = keenest.get(row.parent)
        if other is None or _heat(row) > _heat(other):
            keenest[row.parent] = row
    done = set(resident)
    for row in sorted(rows, key=_heat, reverse=True):
        if row.hits < 1:
            return
        if row.block_hash in done:
            continue
        path = _path(row, known)
        if path is None:
            done.add(row.block_hash)
            continue
        while (child := keenest.get(path[-1].block_hash)) is not None and child.hits >= max(1, KEEN * row.hits):
            if child.block_hash in done or child.depth != path[-1].depth + 1:
                break
            path.append(child)
        n_known = 0
        while n_known < len(path) and path[n_known].block_hash in done:
            n_known += 1
        hashes = tuple(step.block_hash for step in path)
        done.update(hashes)
        yield Chain(row.scope_id, row.tenants, hashes, n_known)


def _heat(row: JournalRow) -> tuple[int, int, int]:
    return row.hits, row.touched, -row.depth


def _path(row: JournalRow, known: Mapping[BlockHash, JournalRow]) -> list[JournalRow] | None:
    """From the root to the row; None when a link is missing or does not fit."""
    path = [row]
    while path[-1].parent != ROOT:
        parent = known.get(path[-1].parent)
        if parent is None or parent.depth != path[-1].depth - 1 or parent.scope_id != row.scope_id:
            return None
        path.append(parent)
    path.reverse()
    return path
