"""release: give back what a lease holds, and count what the request really used."""

from __future__ import annotations

from tiered.core.core import CacheCore
from tiered.core.lease import Lease
from tiered.core.match import touch_prefix
from tiered.core.requests import ended
from tiered.types import Source, TokenCounts


def release(
    core: CacheCore, lease: Lease, *, used_tokens: int, own_tokens: int = 0, now: float | None = None
) -> None:
    """End the lease. used_tokens: how many of the prompt's first tokens the engine did not compute, as it says.

    own_tokens: how many of those it had itself; they were not asked for. The others are counted per source of the
    blocks they lay in; all else the request asked for was missed, so that asked == hot + peer + redis + missed
    holds whatever happened.

    now: when the request ended; None where it goes on without its blocks and somebody else will say.
    """
    _count(core, lease, used_tokens, own_tokens)
    if now is not None:
        ended(core, lease, now=now)
    _give_back(core, lease)


def drop_connection(core: CacheCore, connection: int, *, now: float) -> int:
    """The engine is gone: end all its leases, return how many. What it had not released was not used."""
    gone = [lease for lease in core.leases.values() if lease.connection == connection]
    for lease in gone:
        release(core, lease, used_tokens=0, now=now)
    return len(gone)


def expire(core: CacheCore, now: float) -> int:
    """End leases whose time is over. One that is being written under stays until its connection ends (I2)."""
    lapsed = [lease for lease in core.leases.values() if lease.expires_at <= now and not lease.filling]
    for lease in lapsed:
        release(core, lease, used_tokens=0, now=now)
    return len(lapsed)


def _count(core: CacheCore, lease: Lease, used_tokens: int, own_tokens: int) -> None:
    if lease.counted or lease.asked_tokens <= 0:
        return
    lease.counted = True
    block_tokens = core.options.block_tokens
    own = min(max(own_tokens, 0), lease.asked_tokens)
    used = max(own, min(used_tokens, len(lease.pinned) * block_tokens, lease.asked_tokens))
    by_source = dict.fromkeys(Source, 0)
    for index, source in enumerate(lease.sources[: -(-used // block_tokens)]):
        first = index * block_tokens
        by_source[source] += max(0, min(used, first + block_tokens) - max(own, first))
    counters = core.count(lease.tenant)
    prefill_tokens_per_s = core.prefill.tokens_per_s
    if prefill_tokens_per_s:
        counters.saved_s += (used - own) / prefill_tokens_per_s
    counters.tokens = counters.tokens.plus(
        TokenCounts(
            asked=lease.asked_tokens - own,
            hot=by_source[Source.HOT],
            peer=by_source[Source.PEER],
            redis=by_source[Source.REDIS],
            missed=lease.asked_tokens - used,
        )
    )
    if core.sampler is not None:
        core.sampler.counted(
            lease.tenant, asked=lease.asked_tokens - own, own=own, hit=used - own, hot=by_source[Source.HOT]
        )


def _give_back(core: CacheCore, lease: Lease) -> None:
    if lease.has_grown:
        touch_prefix(core, lease.pinned[-1], lease.tenant)
    unpin = core.table.unpin
    for block_id in lease.pinned:
        unpin(block_id)
    for block_id in reversed(lease.filling):  # children before their parents
        core.drop_filling(block_id)
    lease.pinned.clear()
    lease.filling.clear()
    del core.leases[lease.lease_id]
