"""promote: bring the rest of a prefix up from peers and Redis, in chain order, one fetch for all who want it.

A load is a small state machine that the host steps after every completion. It commits what has arrived as a gap-free
run, asks the next origin for what an origin did not have, waits for blocks that another load is already fetching,
and ends at the first block that nobody has. What arrived behind a gap is given back: never matchable, never served.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from tiered.blocks.record import NO_PARENT
from tiered.core.allocate import Shortfall, take_slots
from tiered.core.core import CacheCore
from tiered.core.lease import Lease
from tiered.core.load_op import LoadOp
from tiered.core.match import pin_run
from tiered.core.telling import tell_fetched, tell_missed
from tiered.estimate.sources import REDIS, SourceKey
from tiered.jobs import FetchDone, FetchJob, Origin
from tiered.types import Source, Ticket

FETCH_BLOCKS_MAX: Final = 32
"""Blocks of one job: enough to keep a socket busy, few enough that several sockets share a prefix."""


def key_of(origin: Origin) -> SourceKey:
    """What is known of an origin is known under this name: a peer is the same in its next life."""
    return REDIS if origin.peer is None else SourceKey(origin.peer.node)


def start_load(core: CacheCore, lease: Lease) -> LoadOp:
    """Begin to load what the lease's origins offer; the op may be done at once."""
    op = LoadOp(
        op_id=core.next_id(),
        lease_id=lease.lease_id,
        next_index=len(lease.pinned),
        origins={index: list(choices) for index, choices in lease.origins.items()},
    )
    core.loads[op.op_id] = op
    step(core, op)
    return op


def apply_fetch(core: CacheCore, done: FetchDone) -> None:
    """Record what one job brought; the ops are stepped afterwards by :func:`step_all`."""
    n_good = sum(checksum is not None for checksum in done.checksums)
    core.sources.finished(
        done.ticket,
        n_bytes=n_good * core.options.block_bytes,
        lacks_blocks=n_good < len(done.checksums),
        took_s=done.took_s,
        now=core.now,
    )
    for block_id in core.strays.pop(done.ticket, ()):
        core.drop_filling(block_id)
    for op in core.loads.values():
        indices = op.outstanding.pop(done.ticket, None)
        if indices is not None:
            for index, checksum in zip(indices, done.checksums, strict=True):
                if checksum is not None:
                    op.arrived[index] = checksum
            return


def step_all(core: CacheCore) -> None:
    """Move every load as far as it goes; one load's progress may be another's."""
    moved = True
    while moved:
        moved = False
        for op in list(core.loads.values()):
            before = op.next_index, len(op.outstanding)
            step(core, op)
            moved = moved or op.done or (op.next_index, len(op.outstanding)) != before


def step(core: CacheCore, op: LoadOp) -> None:
    """One load: commit, retry, extend, or end."""
    lease = core.leases.get(op.lease_id)
    if lease is not None and not op.slots:  # another load of the same lease may have brought some
        op.next_index = len(lease.pinned)
    _commit_run(core, op, lease)
    if op.outstanding:
        return
    if lease is None:  # the engine is gone: what arrived is kept, nothing more is asked for
        _drop_slots(core, op, from_index=op.next_index)
        _finish(core, op)
        return
    if _retry_missing(core, op, lease):
        return
    _follow_others(core, op, lease)
    if _extend(core, op, lease):
        return
    _finish(core, op)


def _commit_run(core: CacheCore, op: LoadOp, lease: Lease | None) -> None:
    first = op.next_index
    while op.next_index in op.arrived:
        op.next_index += 1
    run = range(first, op.next_index)
    block_ids = [op.slots.pop(index) for index in run]
    for index, block_id in zip(reversed(run), reversed(block_ids), strict=True):  # the parent is the youngest
        core.fetching.pop(core.table[block_id].block_hash, None)
        core.become_ready(block_id, op.arrived.pop(index), origin=op.asked[index])
    tell_fetched(core, block_ids, [op.asked[index] for index in run])
    if lease is not None and run:
        pin_run(core, lease, block_ids, [op.asked[index] for index in run], arrived=True)
        lease.has_grown = True


def _retry_missing(core: CacheCore, op: LoadOp, lease: Lease) -> bool:
    """Ask the next origin for slots that are still empty; give up from the first that nobody has left to give."""
    missing = [index for index in op.slots if index not in op.arrived]
    for index in missing:
        if not op.origins.get(index):
            tell_missed(core, lease.hashes[index], lease.tenant, op.asked[index], behind=op.slots_end - index - 1)
            _drop_slots(core, op, from_index=index)
            op.origins = {i: choices for i, choices in op.origins.items() if i < index}
            break
    _ask(core, op, lease, [index for index in missing if index in op.slots])
    return bool(op.outstanding)


def _follow_others(core: CacheCore, op: LoadOp, lease: Lease) -> None:
    """Blocks that somebody else made resident meanwhile are taken as they are."""
    while not op.slots and op.next_index < len(lease.hashes):
        block_id = core.index.find(lease.hashes[op.next_index])
        if block_id is None or core.table[block_id].scope_id != lease.scope_id:
            return
        pin_run(core, lease, [block_id], [op.asked.get(op.next_index, Source.HOT)])
        op.next_index += 1


def _extend(core: CacheCore, op: LoadOp, lease: Lease) -> bool:
    """Take slots for what comes next and ask for it. True while the op has something to wait for."""
    first = op.slots_end
    want = 0
    while op.origins.get(first + want) and lease.hashes[first + want] not in core.filling:
        want += 1
    if want == 0:
        return _waits_for_others(core, op, lease, first)
    parent = lease.pinned[-1] if lease.pinned else NO_PARENT
    block_ids, shortfall = take_slots(
        core,
        lease.hashes[first : first + want],
        scope_id=lease.scope_id,
        tenant=lease.tenant,
        parent=parent,
        gave=lease.gave,
    )
    indices = list(range(first, first + len(block_ids)))
    op.slots.update(zip(indices, block_ids, strict=True))
    _ask(core, op, lease, indices)
    return bool(op.outstanding) or shortfall is Shortfall.SOON


def _waits_for_others(core: CacheCore, op: LoadOp, lease: Lease, first: int) -> bool:
    """Whether the next block is being fetched already; what comes of it counts as coming from there."""
    index = first
    while index < len(lease.hashes) and (origin := core.fetching.get(lease.hashes[index])) is not None:
        op.asked[index] = origin.source
        index += 1
    return index > first and bool(op.origins.get(first))


def _ask(core: CacheCore, op: LoadOp, lease: Lease, indices: list[int]) -> None:
    asked: list[tuple[Origin, int]] = [(op.origins[index].pop(0), index) for index in indices]
    for origin, group in groupby(asked, key=lambda pair: pair[0]):
        batch = [index for _, index in group]
        for start in range(0, len(batch), FETCH_BLOCKS_MAX):
            part = batch[start : start + FETCH_BLOCKS_MAX]
            ticket = Ticket(core.next_id())
            op.outstanding[ticket] = part
            op.asked.update(dict.fromkeys(part, origin.source))
            core.fetching.update((lease.hashes[index], origin) for index in part)
            n_bytes = len(part) * core.options.block_bytes
            core.sources.asked(ticket, key_of(origin), n_bytes=n_bytes, now=core.now)
            core.jobs.append(
                FetchJob(
                    ticket=ticket,
                    origin=origin,
                    scope_id=lease.scope_id,
                    tenant=lease.tenant,
                    block_ids=tuple(op.slots[index] for index in part),
                    hashes=tuple(lease.hashes[index] for index in part),
                    exact_only=core.ledger.policy(lease.tenant).sharing != "private",
                    first_depth=max(part[0], core.table[op.slots[part[0]]].depth),
                    before=tuple(lease.hashes[: part[0]]) if part[0] == len(lease.pinned) else (),
                    trace=lease.trace,
                )
            )


def _drop_slots(core: CacheCore, op: LoadOp, *, from_index: int) -> None:
    for index in sorted((i for i in op.slots if i >= from_index), reverse=True):  # children before parents
        block_id = op.slots.pop(index)
        op.arrived.pop(index, None)
        core.fetching.pop(core.table[block_id].block_hash, None)
        core.drop_filling(block_id)


def _finish(core: CacheCore, op: LoadOp) -> None:
    op.done = True
    del core.loads[op.op_id]


def detach(core: CacheCore, op: LoadOp) -> None:
    """The engine waits no longer. The op goes on until its jobs end, since movers may be writing into its slots."""
    op.origins, op.detached = {}, True
    step(core, op)
