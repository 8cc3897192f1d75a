"""check(core): I1 to I5 over table, index, policies, ledger and leases together. Cost: O(n_blocks)."""

from __future__ import annotations

from collections import Counter

from tiered.blocks.invariants import check_table, require
from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.types import BlockId


def check_core(core: CacheCore) -> None:
    """Raises InvariantError naming the first rule that does not hold."""
    check_table(core.table)
    records = core.table.records
    matchable = {
        record.block_hash: i
        for i, record in enumerate(records)
        if record.state in (BlockState.READY, BlockState.LEAVING)
    }
    require(dict(core.index.items()) == matchable, "I3: the index and the READY and LEAVING blocks differ")
    filling = {record.block_hash: i for i, record in enumerate(records) if record.state is BlockState.FILLING}
    require(core.filling == filling, "I3: the filling map and the FILLING blocks differ")
    require(set(core.fetching) <= set(filling), "a hash is fetched that no block is being filled with")
    leaving = {record.ticket: i for i, record in enumerate(records) if record.state is BlockState.LEAVING}
    require(core.leaving == leaving, "I1: copies under way and LEAVING blocks differ")
    pins = Counter(block_id for lease in core.leases.values() for block_id in lease.pinned)
    pins.update(core.recalled.values())
    for index, record in enumerate(records):
        held = pins[BlockId(index)]
        require(record.pins == held, f"I2: block {index} has {record.pins} pins, leases and copies hold {held}")
    used = Counter(record.tenant for record in records if record.state is not BlockState.FREE)
    charged = dict(core.ledger.tenants())
    expected = {tenant: n * core.options.block_bytes for tenant, n in used.items()}
    require(charged == expected, f"I5: charged {charged}, resident {expected}")
    for tenant, policy in core.policies.items():
        mine = {i for i, r in enumerate(records) if r.state is BlockState.READY and r.tenant == tenant}
        require(set(policy.victims()) == mine, f"the policy of {tenant!r} and its READY blocks differ")
        require(len(policy) == len(mine), f"the policy of {tenant!r} counts {len(policy)} blocks, not {len(mine)}")
