"""requests: what policies that learn from whole requests, and the sample of lookups, are told, and when.

A lookup and the save that follows it are two leases of one request; which belongs to which is for the policy to see
from their paths. Policies that look at blocks alone cost nothing here.
"""

from __future__ import annotations

from tiered.core.core import CacheCore
from tiered.core.lease import Lease
from tiered.types import Hints, TenantId


def looked_up(core: CacheCore, lease: Lease, *, now: float, hints: Hints) -> None:
    learner = core.learner_of(lease.tenant)
    if learner is not None and lease.hashes:
        learner.on_request(lease.lease_id, lease.hashes, now=now, hints=hints)
        lease.is_told = True
    if core.sampler is not None and lease.asked_tokens > 0 and lease.hashes:
        core.sampler.looked_up(lease.tenant, lease.hashes, prompt_tokens=lease.asked_tokens, now=core.now)


def saving(core: CacheCore, lease: Lease, *, now: float, hints: Hints) -> None:
    learner = core.learner_of(lease.tenant)
    if learner is not None and lease.hashes:
        learner.on_save(lease.lease_id, lease.hashes, now=now, hints=hints)
        lease.is_told, lease.output_tokens = True, hints.output_tokens
    if core.sampler is not None:
        core.sampler.saved(lease.tenant, lease.hashes)


def ended(core: CacheCore, lease: Lease, *, now: float, output_tokens: int | None = None) -> None:
    """The lease, released or about to be, was the last that its request held under this name."""
    learner = core.learner_of(lease.tenant)
    if learner is not None and lease.is_told:
        known = lease.output_tokens if output_tokens is None else output_tokens
        learner.on_end(lease.lease_id, now=now, output_tokens=known)
        lease.is_told = False


def close_session(core: CacheCore, tenant: TenantId, session: str, *, now: float) -> None:
    """The caller says that this conversation is over; a name that nobody knows changes nothing."""
    learner = core.learner_of(tenant)
    if learner is not None:
        learner.on_close(session, now=now)
