"""commit: blocks an engine has filled become matchable; abort: they are given back unread."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.core.core import CacheCore
from tiered.core.lease import Lease
from tiered.core.telling import tell_stored
from tiered.errors import OwnershipError


def commit(core: CacheCore, lease: Lease, checksums: Sequence[bytes | None]) -> int:
    """The first ``len(checksums)`` unfinished blocks of the lease are whole now; returns how many.

    They stay pinned until the save ends, so that a long chain never evicts its own end to make room for more.

    Errors: OwnershipError when the lease fills fewer; nothing is changed then.
    """
    n = len(checksums)
    if n > len(lease.filling):
        raise OwnershipError(f"lease {lease.lease_id} fills {len(lease.filling)} blocks, not {n}")
    whole = lease.filling[:n]
    records = core.table.records
    for block_id, checksum in zip(reversed(whole), reversed(checksums), strict=True):  # the parent is the youngest
        core.become_ready(block_id, checksum)
        records[block_id].pins += 1
    if core.why is not None:
        tell_stored(core, whole)
    lease.pinned.extend(whole)
    lease.has_grown = lease.has_grown or n > 0
    del lease.filling[:n]
    return n


def abort(core: CacheCore, lease: Lease) -> int:
    """Give back every unfinished block of the lease; returns how many."""
    n = len(lease.filling)
    for block_id in reversed(lease.filling):
        core.drop_filling(block_id)
    lease.filling.clear()
    return n
