"""One block as the journal keeps it, and the seal that binds a hash to the bytes of one slot.

SQLite guards the structure of its file, not each bit in it. A row whose hash or checksum changed on the disk must not
give one block's bytes out as another's, so what adoption relies on is sealed together, under the pool it speaks of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tiered.types import HASH_BYTES, BlockHash, TenantId

SEAL_BYTES: Final = 16
CHECKSUM_BYTES: Final = 16
ROOT: Final = BlockHash(b"")
"""The parent of a prefix's first block."""

SqlRow: TypeAlias = tuple[bytes, bytes, bytes, str, int, int, int, int | None, bytes | None, bytes | None]
"""hash, parent, scope, tenants, depth, hits, touched, slot, checksum, seal"""


@dataclass(frozen=True, slots=True)
class JournalRow:
    """What is known of one block.

    parent:   hash of the block before it, ``ROOT`` for the first of a prefix. depth: blocks before it.
    tenants:  who uses it, and so who is charged.
    hits:     uses in all its lives here. touched: grows with each use; equal for what was used together.
    slot:     where its bytes lie in the pool file, None when they do not: it was evicted, or the pool cannot be
              found again. checksum: of those bytes; the two stand together or not at all.
    """

    block_hash: BlockHash
    parent: BlockHash
    scope_id: bytes
    tenants: tuple[TenantId, ...]
    depth: int
    slot: int | None = None
    checksum: bytes | None = None
    hits: int = 0
    touched: int = 0


def encode_row(row: JournalRow, *, pool: str) -> SqlRow:
    tenants = json.dumps(row.tenants)
    sealed = None
    if row.slot is not None and row.checksum is not None:
        sealed = _seal(
            row.block_hash, row.parent, row.scope_id, tenants, row.depth, row.slot, row.checksum, pool=pool
        )
    return (
        row.block_hash,
        row.parent,
        row.scope_id,
        tenants,
        row.depth,
        row.hits,
        row.touched,
        row.slot if sealed else None,
        row.checksum if sealed else None,
        sealed,
    )


def decode_row(values: Sequence[object], *, pool: str) -> JournalRow | None:
    """None for a row that no release wrote like this.

    One whose seal is not that of its pool, if it was ever sealed, comes back without slot and checksum: its hash may
    still be asked for elsewhere, where whoever holds the block proves the bytes.
    """
    block_hash, parent, scope_id, tenants, depth, hits, touched, slot, checksum, seal = values
    if not (
        isinstance(block_hash, bytes)
        and isinstance(parent, bytes)
        and isinstance(scope_id, bytes)
        and isinstance(tenants, str)
        and isinstance(depth, int)
        and isinstance(hits, int)
        and isinstance(touched, int)
        and len(block_hash) == HASH_BYTES
        and len(parent) == (HASH_BYTES if depth else 0)
        and 0 <= depth < 1 << 32
        and hits >= 0
    ):
        return None
    names = _names(tenants)
    if not names:
        return None
    good = (
        isinstance(slot, int)
        and isinstance(checksum, bytes)
        and len(checksum) == CHECKSUM_BYTES
        and slot >= 0
        and seal == _seal(block_hash, parent, scope_id, tenants, depth, slot, checksum, pool)
    )
    return JournalRow(
        block_hash=BlockHash(block_hash),
        parent=BlockHash(parent),
        scope_id=scope_id,
        tenants=names,
        depth=depth,
        slot=slot if good and isinstance(slot, int) else None,
        checksum=checksum if good and isinstance(checksum, bytes) else None,
        hits=hits,
        touched=touched,
    )


def _names(tenants: str) -> tuple[TenantId, ...]:
    try:
        names = json.loads(tenants)
    except ValueError:
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(TenantId(name) for name in names)


def _seal(
    block_hash: bytes,
    parent: bytes,
    scope_id: bytes,
    tenants: str,
    depth: int,
    slot: int,
    checksum: bytes,
    pool: str,
) -> bytes:
    """Cost: about 2 microseconds. Lengths stand before what varies, so that no two rows are sealed alike."""
    names = tenants.encode()
    head = f"{pool}/{depth}/{slot}/{len(parent)}/{len(scope_id)}/{len(names)}/".encode()
    return hashlib.blake2b(
        b"".join((head, block_hash, parent, scope_id, names, checksum)), digest_size=SEAL_BYTES
    ).digest()
