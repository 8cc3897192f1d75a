"""Rows of made-up prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.core.builders import RED, SCOPE, chain, checksum
from tiered.journal.rows import ROOT, JournalRow
from tiered.types import TenantId

POOL = "tiered-pool-0-w1-0123456789ab-0123456789abcdef"


def rows_of(
    name: str,
    n_blocks: int,
    *,
    first_slot: int | None = 0,
    tenants: Sequence[TenantId] = (RED,),
    hits: int = 0,
    touched: int = 0,
) -> list[JournalRow]:
    """One prefix whose blocks lie in slots from ``first_slot`` on, or nowhere."""
    hashes = chain(name, n_blocks)
    return [
        JournalRow(
            block_hash=block_hash,
            parent=hashes[depth - 1] if depth else ROOT,
            scope_id=SCOPE,
            tenants=tuple(tenants),
            depth=depth,
            slot=None if first_slot is None else first_slot + depth,
            checksum=None if first_slot is None else checksum(block_hash),
            hits=hits,
            touched=touched,
        )
        for depth, block_hash in enumerate(hashes)
    ]
