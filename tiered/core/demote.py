"""demote: make room, work ahead of need, and take what the movers say of copies.

Eviction never waits for the network: a block leaves as soon as its bytes are copied aside, and a full queue costs the
copy, never a stall.
"""

from __future__ import annotations

from collections import Counter, deque

from tiered.blocks.record import NO_TENANT
from tiered.blocks.state import BlockState
from tiered.core.core import CacheCore
from tiered.core.giving import Victim, choose, first_of
from tiered.core.leaving import leaving_blocks, let_go, may_begin, send_down
from tiered.core.telling import AHEAD_OF_NEED, LIMIT_LOWERED, OWN_LIMIT, ROOM, tell_copy_ended, tell_parted, terms_of
from tiered.core.why import Terms
from tiered.jobs import CopyDone
from tiered.tenancy.ledger import parts
from tiered.types import BlockHash, BlockId, TenantId, Ticket


def make_room(
    core: CacheCore, *, asking: TenantId, n_blocks: int, copy: bool = True, gave: Counter[TenantId] | None = None
) -> int:
    """Let up to ``n_blocks`` blocks leave for ``asking``; returns how many do, at once or when their copy is made.

    copy: False drops them without one. At most ``leaving_max`` copies are under way at once.
    gave: counts whose blocks they were.
    """
    started = 0
    giver: TenantId | None = None
    terms: Terms | None = None
    while started < n_blocks and may_begin(core, copy):
        victim = choose(core, asking, copy=copy)
        if victim is None:
            break
        _note_age(core, victim)
        if victim[1] != giver:  # mostly one tenant gives all of it
            giver = victim[1]
            terms = terms_of(core, giver, asking, why=ROOM if asking else AHEAD_OF_NEED)
        if _give(core, victim, terms, copy=copy):
            started += 1
            _note(core, giver, asking, gave)
    return started


def shrink(
    core: CacheCore,
    tenant: TenantId,
    *,
    n_bytes: int,
    copy: bool = True,
    gave: Counter[TenantId] | None = None,
    why: str = OWN_LIMIT,
) -> None:
    """Let blocks of the tenant leave, and its parts of shared ones go, until that makes ``n_bytes``."""
    freed = 0
    terms = terms_of(core, tenant, tenant, why=why) if n_bytes > 0 else None
    while freed < n_bytes and may_begin(core, copy):
        victim = first_of(core, (tenant,), copy=copy)
        if victim is None:
            break
        *_, part = parts(core.options.block_bytes, len(core.table[victim[0]].tenants))
        if _give(core, victim, terms, copy=copy):
            _note(core, tenant, tenant, gave)
        freed += part


def tend(core: CacheCore) -> None:
    """Work ahead of need: keep ``free_target_blocks`` free, hold every tenant to a limit that was lowered, and where
    every block is to be copied, begin as many copies as may be under way."""
    _hold_to_limits(core)
    free = core.blocks_in(BlockState.FREE) + core.blocks_in(BlockState.LEAVING)
    make_room(core, asking=NO_TENANT, n_blocks=core.options.free_target_blocks - free)
    _copy_what_stays(core)


def _hold_to_limits(core: CacheCore) -> None:
    """Again for as long as something leaves at once: who parts from a block may wait for another to make room for a
    larger part, and no further turn need come in which it could."""
    ledger = core.ledger
    while above := [tenant for tenant, _ in ledger.tenants() if ledger.excess_bytes(tenant)]:
        held_bytes = ledger.total_bytes()
        for tenant in above:
            leaving_bytes = leaving_blocks(core)[tenant] * core.options.block_bytes
            shrink(core, tenant, n_bytes=ledger.excess_bytes(tenant) - leaving_bytes, why=LIMIT_LOWERED)
        if ledger.total_bytes() == held_bytes:
            break


def _copy_what_stays(core: CacheCore) -> None:
    """Begin copies of blocks that became whole; what left or began to leave meanwhile was seen to by that."""
    while core.uncopied and may_begin(core, True):
        block_id, block_hash = core.uncopied.popleft()
        record = core.table[block_id]
        if record.block_hash == block_hash and record.state is BlockState.READY and not record.copied:
            _copy_and_keep(core, block_id)


def copy_and_keep(core: CacheCore, wanted: deque[BlockHash], *, part: float = 1.0) -> None:
    """Begin copies of as many of these blocks as may be under way, and take them off; whatever is no longer here, or
    is leaving by way of a copy as it is, comes off too. part: of all that may be under way, what these may take."""
    at_most = max(1, int(core.options.leaving_max * part))
    while wanted and may_begin(core, True) and len(core.leaving) + len(core.recalled) < at_most:
        block_id = core.index.find(wanted.popleft())
        if block_id is not None and core.table[block_id].state is BlockState.READY:
            _copy_and_keep(core, block_id)


def _copy_and_keep(core: CacheCore, block_id: BlockId) -> None:
    ticket = Ticket(core.next_id())
    core.table.pin(block_id)
    core.recalled[ticket] = block_id
    send_down(core, block_id, ticket)


def apply_copy(core: CacheCore, done: CopyDone) -> None:
    """A copy ended, or could not be made: either way the block leaves, unless a hit brought it back meanwhile."""
    recalled = core.recalled.pop(done.ticket, None)
    if recalled is not None:
        tell_copy_ended(core, recalled, copied=done.copied, stays=True)
        if done.copied:
            core.table.note_copied(recalled)
        core.table.unpin(recalled)
        return
    victim = core.leaving.pop(done.ticket, None)
    if victim is None:
        return
    tenant = core.table[victim].tenant
    tell_copy_ended(core, victim, copied=done.copied, stays=False)
    core.forget(victim, left=done)
    if done.copied:
        core.count(tenant).demoted += 1


def _give(core: CacheCore, victim: Victim, terms: Terms | None, *, copy: bool) -> bool:
    """False when others still use the block: then only those who part from it have let go."""
    block_id, _, parting, rank = victim
    if not parting:
        let_go(core, block_id, terms, rank=rank, copy=copy)
        return True
    record = core.table[block_id]
    all_part = len(parting) == len(record.tenants)
    for tenant in reversed(parting):
        if record.shares is not None:
            if terms is not None:
                tell_parted(core, block_id, tenant, terms)
            core.part(block_id, tenant)
    if all_part:  # nobody has room for it whole, not even while it is copied
        let_go(core, block_id, terms, rank=rank, copy=False)
    return all_part


def _note_age(core: CacheCore, victim: Victim) -> None:
    """How old it is, and whether it is owed to its tenant, before it leaves; of tenants with a reservation alone, so
    that nobody else's flood makes theirs look idle."""
    block_id, tenant, _, _ = victim
    promise = core.promises.get(tenant)
    if promise is None:
        return
    record = core.table[block_id]
    age = core.n_promised - record.promised_at
    if age < core.leaving_age.too_idle:
        promise.take(record.block_hash)
    elif promise.keeps(record.block_hash):
        return  # lent, not worn out: its age says nothing of when blocks leave
    core.leaving_age.saw(age)


def _note(core: CacheCore, giver: TenantId, asking: TenantId, gave: Counter[TenantId] | None) -> None:
    if gave is not None:
        gave[giver] += 1
    if asking not in (giver, NO_TENANT):
        core.count(giver).reclaimed += 1
        core.count(asking).caused += 1
