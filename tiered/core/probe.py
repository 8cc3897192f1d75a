"""probe: fetch a block or a few only to see how fast a source is by now. No request waits for them.

Their bytes land in slots under names that no hash can be, hanging on nothing, and are given back as soon as the fetch
ends: the prefix itself stays free for the engine that is computing it at this moment.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final

from tiered.blocks.record import NO_PARENT
from tiered.blocks.state import BlockState
from tiered.core.allocate import Shortfall, ensure_slot
from tiered.core.core import CacheCore
from tiered.core.lease import Lease
from tiered.core.promote import key_of
from tiered.jobs import FetchJob, Origin
from tiered.types import BlockHash, Ticket

PROBE_BLOCKS: Final = (4, 1)
"""In turns: from one size alone latency and bandwidth could not be told apart."""


def start_probe(core: CacheCore, lease: Lease, origin: Origin, *, first: int, n_blocks_max: int) -> bool:
    """Ask for some of the lease's blocks from ``first`` on; False where the tenant gets no slot for one.

    In a full pool one block leaves for it, as for a save of one block.
    """
    block_bytes = core.options.block_bytes
    n_blocks = min(PROBE_BLOCKS[core.plans.probes % len(PROBE_BLOCKS)], n_blocks_max)
    if core.blocks_in(BlockState.FREE) < n_blocks or core.ledger.excess_bytes(
        lease.tenant, asked_bytes=n_blocks * block_bytes
    ):
        n_blocks = 1
    if ensure_slot(core, lease.tenant, lacking=1, gave=Counter(), force=False) is not Shortfall.NONE:
        return False
    ticket = Ticket(core.next_id())
    hashes = tuple(islice(lease.hashes, first, first + n_blocks))
    taken = []
    for number in range(n_blocks):
        name = BlockHash(b"probe" + ticket.to_bytes(8, "little") + bytes([number]))
        block_id = core.become_filling(name, scope_id=lease.scope_id, tenant=lease.tenant, parent=NO_PARENT, depth=0)
        assert block_id is not None  # they are free
        taken.append(block_id)
    core.strays[ticket] = tuple(taken)
    core.plans.probes += 1
    core.sources.asked(ticket, key_of(origin), n_bytes=n_blocks * block_bytes, now=core.now)
    core.jobs.append(
        FetchJob(
            ticket=ticket,
            origin=origin,
            scope_id=lease.scope_id,
            tenant=lease.tenant,
            block_ids=tuple(taken),
            hashes=hashes,
            exact_only=core.ledger.policy(lease.tenant).sharing != "private",
            first_depth=first,
        )
    )
    return True
