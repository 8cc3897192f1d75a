"""check(core): I1 to I5 over table, index, policies, ledger and leases together. Cost: O(n_blocks)."""

from __future__ import annotations

from collections import Counter

from tiered.blocks.invariants import check_table, require
from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.tenancy.ledger import parts
from tiered.types import HASH_BYTES, BlockId, TenantId


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
    pins.update(check_sequences(core))
    for index, record in enumerate(records):
        held = pins[BlockId(index)]
        require(record.pins == held, f"I2: block {index} has {record.pins} pins, in use are {held}")
    used: Counter[TenantId] = Counter()
    n_used: Counter[TenantId] = Counter()
    for record in records:
        if record.state is not BlockState.FREE:
            n_used.update(record.tenants)
            used.update(dict(zip(record.tenants, parts(core.options.block_bytes, len(record.tenants)), strict=True)))
    charged = dict(core.ledger.tenants())
    require(charged == dict(used), f"I5: charged {charged}, resident {dict(used)}")
    counted = {tenant: core.ledger.used_blocks(tenant) for tenant in used}
    require(counted == dict(n_used), f"I5: counted {counted} blocks, resident {dict(n_used)}")
    for tenant, policy in core.policies.items():
        mine = {i for i, r in enumerate(records) if r.state is BlockState.READY and r.used_by(tenant)}
        require(set(policy.victims()) == mine, f"the policy of {tenant!r} and its READY blocks differ")
        require(len(policy) == len(mine), f"the policy of {tenant!r} counts {len(policy)} blocks, not {len(mine)}")


def check_sequences(core: CacheCore) -> Counter[BlockId]:
    """That sequences and their blocks agree; returns how often sequences hold each block."""
    records = core.table.records
    held: Counter[BlockId] = Counter()
    for sequence in core.sequences.values():
        name, n_tokens, size = f"sequence {sequence.sequence_id}", len(sequence), sequence.block_tokens
        held.update(sequence.block_ids)
        require(len(sequence.block_ids) == -(-n_tokens // size), f"{name} has {n_tokens} tokens in other blocks")
        require(len(sequence.hashes) == n_tokens // size, f"{name} has {len(sequence.hashes)} hashes")
        require(0 <= sequence.n_written <= n_tokens, f"{name} has written {sequence.n_written} of {n_tokens}")
        require(sequence.n_ready <= len(sequence.block_ids), f"{name} counts too many READY blocks")
        require(set(sequence.checksums) <= set(range(sequence.n_ready, n_tokens // size)), f"{name} keeps checksums")
        for index, block_id in enumerate(sequence.block_ids):
            record = records[block_id]
            if index < sequence.n_ready:
                require(record.state is BlockState.READY, f"{name}: block {block_id} is {record.state.name}")
            if index < min(sequence.n_ready, len(sequence.hashes)):
                require(record.block_hash == sequence.hashes[index], f"{name}: block {block_id} has another content")
        if sequence.copy is not None:
            held[sequence.copy.source] += 1
            target, at = sequence.copy.target, sequence.n_written // size
            require(sequence.block_ids[at] == target, f"{name} copies to block {target}, which is not its open one")
    strays = {block_id for block_ids in core.strays.values() for block_id in block_ids}
    opened = {i for block_hash, i in core.filling.items() if len(block_hash) != HASH_BYTES} - strays
    require(opened <= held.keys(), f"blocks {opened - held.keys()} are open for no sequence")
    return held
