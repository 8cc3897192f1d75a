"""adrift: take the names of blocks away that a load is fetching and nobody waits for, so that a save may write them.

A mover may still be writing into their slots, so those stay what they are until its job ends: FILLING, hanging on
nothing, under names that no hash can be (``CacheCore.strays``). What arrives in them is dropped: the engine has it.
"""

from __future__ import annotations

from tiered.core.core import CacheCore
from tiered.core.load_op import LoadOp
from tiered.types import BlockHash, BlockId


def set_adrift(core: CacheCore, block_id: BlockId) -> bool:
    """Let go of the FILLING block, with all that its load has under way; False where somebody is still at it."""
    op = next((op for op in core.loads.values() if block_id in op.slots.values()), None)
    if op is None or not (op.detached or op.lease_id not in core.leases):
        return False
    for ticket, indices in op.outstanding.items():
        core.strays[ticket] = tuple(op.slots[index] for index in indices)
    owed = {index for indices in op.outstanding.values() for index in indices}
    for index in sorted(op.slots, reverse=True):  # children before parents
        _let_go(core, op, index, is_owed=index in owed)
    op.slots, op.outstanding, op.arrived = {}, {}, {}
    op.done = True
    del core.loads[op.op_id]
    return True


def _let_go(core: CacheCore, op: LoadOp, index: int, *, is_owed: bool) -> None:
    block_id = op.slots[index]
    core.fetching.pop(core.table[block_id].block_hash, None)
    if is_owed:
        core.unname_filling(block_id, BlockHash(b"adrift" + core.next_id().to_bytes(8, "little")))
    else:
        core.drop_filling(block_id)
