"""demote: choose what leaves, and send a copy down where it is worth its bytes.

First *which tenant gives* (fairness), then *which of its blocks* (its policy), leaf first, pins respected. Eviction
never waits for the network: a block leaves as soon as its bytes are copied aside, and a full queue costs the copy,
never a stall.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from tiered.blocks.record import NO_TENANT
from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.jobs import CopyDone, DemoteJob
from tiered.tenancy.fairness import giving_order
from tiered.types import BlockId, TenantId, Ticket

_NONE_LEAVING: Final[Counter[TenantId]] = Counter()

REUSED_HITS: Final = 1
"""Matches after its commit that make a block "reused": written once, wanted again."""


def make_room(core: CacheCore, *, asking: TenantId, n_blocks: int, copy: bool = True) -> int:
    """Let up to ``n_blocks`` blocks leave for ``asking``; returns how many do, at once or when their copy is made.

    copy: False drops them without one. At most ``leaving_max`` copies are under way at once.
    """
    block_bytes = core.options.block_bytes

    def givers() -> Iterable[TenantId]:
        leaving = leaving_blocks(core)
        room = core.blocks_in(BlockState.FREE) + leaving.total()
        return giving_order(
            core.ledger,
            asking=asking,
            asked_bytes=(room + 1) * block_bytes,
            block_bytes=block_bytes,
            leaving_bytes={tenant: n * block_bytes for tenant, n in leaving.items()},
        )

    return _let_go_of(core, givers, n_blocks, copy)


def shrink(core: CacheCore, tenant: TenantId, *, n_blocks: int, copy: bool = True) -> int:
    """Let up to ``n_blocks`` of one tenant's own blocks leave, as in :func:`make_room`."""
    return _let_go_of(core, lambda: [tenant], n_blocks, copy)


def leaving_blocks(core: CacheCore) -> Counter[TenantId]:
    """Per tenant the blocks that are on their way out; they are charged until their copy is made."""
    if not core.leaving:
        return _NONE_LEAVING
    return Counter(core.table[block_id].tenant for block_id in core.leaving.values())


def tend(core: CacheCore) -> None:
    """Work ahead of need: keep ``free_target_blocks`` free, and hold every tenant to a limit that was lowered."""
    block_bytes = core.options.block_bytes
    for tenant, _ in list(core.ledger.tenants()):
        excess = core.ledger.excess_bytes(tenant)
        if excess:
            shrink(core, tenant, n_blocks=-(-excess // block_bytes) - leaving_blocks(core)[tenant])
    free = core.blocks_in(BlockState.FREE) + core.blocks_in(BlockState.LEAVING)
    make_room(core, asking=NO_TENANT, n_blocks=core.options.free_target_blocks - free)


def let_go(core: CacheCore, victim: BlockId, *, copy: bool = True) -> None:
    """Evict a block that may leave, by way of a copy when it is worth one."""
    if not (copy and _worth_a_copy(core, victim)):
        core.forget(victim)
        return
    record = core.table[victim]
    ticket = Ticket(core.next_id())
    core.start_leaving(victim, ticket)
    core.jobs.append(
        DemoteJob(
            ticket=ticket,
            block_id=victim,
            block_hash=record.block_hash,
            scope_id=record.scope_id,
            tenant=record.tenant,
            depth=record.depth,
            checksum=record.checksum,
        )
    )


def apply_copy(core: CacheCore, done: CopyDone) -> None:
    """A copy ended, or could not be made: either way the block leaves, unless a hit brought it back meanwhile."""
    recalled = core.recalled.pop(done.ticket, None)
    if recalled is not None:
        core.table.unpin(recalled)
        return
    victim = core.leaving.pop(done.ticket, None)
    if victim is None:
        return
    tenant = core.table[victim].tenant
    core.forget(victim, left=done)
    if done.copied:
        core.count(tenant).demoted += 1


def _let_go_of(core: CacheCore, tenants: Callable[[], Iterable[TenantId]], n_blocks: int, copy: bool) -> int:
    started = 0
    while started < n_blocks and (not copy or len(core.leaving) + len(core.recalled) < core.options.leaving_max):
        victim = _choose(core, tenants())
        if victim is None:
            break
        let_go(core, victim, copy=copy)
        started += 1
    return started


def _choose(core: CacheCore, tenants: Iterable[TenantId]) -> BlockId | None:
    for tenant in tenants:
        policy = core.policies.get(tenant)
        if policy is None:
            continue
        for block_id in policy.victims():
            if core.table.may_leave(block_id):
                return block_id
    return None


def _worth_a_copy(core: CacheCore, victim: BlockId) -> bool:
    options = core.options
    if not options.lower_tier or options.demote == "never":
        return False
    return options.demote == "evicted" or core.table[victim].hits >= REUSED_HITS
