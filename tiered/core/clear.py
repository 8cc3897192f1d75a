"""clear: let blocks go because somebody asked for it, without a copy; what is in use goes when it is no more.

A pool may hold a million blocks, and its host answers engines meanwhile: both verbs are generators that stop after
each STEP_BLOCKS, for the host to go on with when it will. What changes in between is seen, block by block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain
from typing import Final, TypeAlias, TypeVar

from tiered.blocks.record import NO_PARENT, BlockRecord
from tiered.core.core import CacheCore
from tiered.core.giving import who_parts
from tiered.types import BlockHash, BlockId, TenantId

STEP_BLOCKS: Final = 1_024
"""Some 10 ms to let go."""

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
Wanted: TypeAlias = Callable[[BlockRecord], bool]


def of_tenant(tenant: TenantId) -> Wanted:
    return lambda record: record.used_by(tenant)


def of_scope(scope_id: bytes) -> Wanted:
    return lambda record: record.scope_id == scope_id


def of_prefix(core: CacheCore, block_hash: BlockHash) -> Wanted:
    """A block and all that hangs on it; of records that come parents first."""
    found = {block_hash}

    def is_wanted(record: BlockRecord) -> bool:
        if record.parent != NO_PARENT and core.table[record.parent].block_hash in found:
            found.add(record.block_hash)
        return record.block_hash in found

    return is_wanted


def resident(core: CacheCore, is_wanted: Wanted) -> Steps[list[BlockHash]]:
    """Those that are here when it begins and are wanted, the shallowest first."""
    at_depth: dict[int, list[BlockHash]] = defaultdict(list)  # one sort of all would be one long step
    for part in _parts(core.resident_hashes()):
        for record in _records(core, part):
            at_depth[record.depth].append(record.block_hash)
        yield
    found: list[BlockHash] = []
    for part in _parts(list(chain.from_iterable(at_depth[depth] for depth in sorted(at_depth)))):
        found += [record.block_hash for record in _records(core, part) if is_wanted(record)]
        yield
    return found


def clear(core: CacheCore, hashes: Sequence[BlockHash], *, tenant: TenantId | None = None) -> Steps[list[BlockHash]]:
    """Let these go, from the last, which is the deepest; those that are left, in the same order, are in use, leaving
    by way of a copy, or have a block in use hanging on them.

    tenant: it alone lets go; of a block that others use too, they keep their part.
    """
    left: list[BlockHash] = []
    for part in _parts(hashes[::-1]):
        for block_hash in part:
            block_id = core.index.find(block_hash)
            if block_id is not None and not _go(core, block_id, tenant):
                left.append(block_hash)
        yield
    return left[::-1]


def _go(core: CacheCore, block_id: BlockId, tenant: TenantId | None) -> bool:
    """Whether it is done with. Nobody parts from a block that stays while that presses another above its limit."""
    record = core.table[block_id]
    users: Sequence[TenantId] = ()
    if tenant is not None:
        users = _who_parts(core, block_id, tenant) if core.table.may_part(block_id, tenant) else ()
    elif not record.children:
        users = record.tenants
    for user in reversed(users):
        if core.table.may_part(block_id, user):
            core.part(block_id, user)
    if core.table.may_leave(block_id) and (tenant is None or record.tenant == tenant):
        block_hash, owner = record.block_hash, record.tenant
        core.forget(block_id)
        if core.why is not None:
            core.why.note("cleared", block_hash, owner)
        return True
    return tenant is not None and not record.used_by(tenant)


def _who_parts(core: CacheCore, block_id: BlockId, tenant: TenantId) -> Sequence[TenantId]:
    """Asked again for as long as another makes room for its larger part at once."""
    while True:
        held_bytes = core.ledger.total_bytes()
        parting = who_parts(core, block_id, tenant, copy=False)
        if parting or core.ledger.total_bytes() == held_bytes:
            return parting


def _parts(hashes: Sequence[BlockHash]) -> Iterator[Sequence[BlockHash]]:
    return (hashes[first : first + STEP_BLOCKS] for first in range(0, len(hashes), STEP_BLOCKS))


def _records(core: CacheCore, hashes: Sequence[BlockHash]) -> Iterator[BlockRecord]:
    """Of those that are still here."""
    return (core.table[block_id] for each in hashes if (block_id := core.index.find(each)) is not None)
