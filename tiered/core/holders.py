"""holders: who holds what, in words, for whoever finds no room. Cost: O(what is held)."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tiered.blocks.record import NO_TENANT
from tiered.core.core import CacheCore
from tiered.types import BlockId, TenantId

HOLDERS_MAX: Final = 3
"""Tenants named; the rest is one number."""


def holders(core: CacheCore) -> tuple[str, ...]:
    """One phrase for each tenant that keeps blocks from leaving, most first; what is on its way out comes last."""
    blocks: defaultdict[TenantId, set[BlockId]] = defaultdict(set)
    n_sequences: defaultdict[TenantId, int] = defaultdict(int)
    n_leases: defaultdict[TenantId, int] = defaultdict(int)
    for sequence in core.sequences.values():
        n_sequences[sequence.tenant] += 1
        blocks[sequence.tenant].update(sequence.block_ids)
        if sequence.copy is not None:
            blocks[sequence.tenant].add(sequence.copy.source)
    for lease in core.leases.values():
        if lease.pinned or lease.filling:
            n_leases[lease.tenant] += 1
            blocks[lease.tenant].update(lease.pinned, lease.filling)
    for load in core.loads.values():
        for block_id in load.slots.values():
            blocks[core.table[block_id].tenant].add(block_id)
    order = sorted((tenant for tenant in blocks if blocks[tenant]), key=lambda tenant: (-len(blocks[tenant]), tenant))
    phrases = [
        f"{'a peer' if tenant == NO_TENANT else repr(str(tenant))} holds {len(blocks[tenant])} of {core.n_blocks} "
        f"blocks (sequences: {n_sequences[tenant]}, leases: {n_leases[tenant]})"
        for tenant in order[:HOLDERS_MAX]
    ]
    if rest := order[HOLDERS_MAX:]:
        phrases.append(f"{len(rest)} other tenants hold {len(set().union(*(blocks[t] for t in rest)))}")
    if n_leaving := len(core.leaving) + len(core.recalled):
        phrases.append(f"{n_leaving} are being copied down")
    return tuple(phrases)
