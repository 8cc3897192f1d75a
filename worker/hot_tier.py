"""The hot tier as engines and peers ask for it: match, load, allocate, commit, release, lend.

Owns the waiting on their behalf. All methods run on the loop; what they wait for is a turn of the seam.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tiered.core.allocate import Grant, Shortfall
from tiered.core.commit import commit
from tiered.core.lease import Lease
from tiered.core.lend import lend
from tiered.core.match import match, open_lease
from tiered.core.origins import origins_of
from tiered.core.planning import end_load, plan_fetch, time_for
from tiered.core.promote import start_load
from tiered.core.pump import grow, take
from tiered.core.release import drop_connection, expire, release
from tiered.core.requests import close_session, saving
from tiered.core.sequences import out_of_blocks
from tiered.errors import CapacityError, LayoutMismatch, OwnershipError, TierError
from tiered.hashing.scope import ModelScope
from tiered.pool.pool import BlockPool
from tiered.sequence.sequence import Appended, Extension, TokenSequence
from tiered.tracing import here
from tiered.types import (
    NO_HINTS,
    BlockHash,
    BlockId,
    Hints,
    LeaseId,
    TenantId,
)
from tiered.wire.messages import Explain, Explained, Recent
from worker.building import make
from worker.explain import explain
from worker.host import Host

PEER_CONNECTION = 0
"""Holds the leases under which peers are sent blocks; engines' connections count from 1."""

OWN_CONNECTION = -1
"""Holds the leases under which this worker moves blocks of its own accord, such as to warm up after a start."""

LEND_LEASE_S = 30.0
"""A block lent to a peer comes back by itself after this long, far beyond any fetch's deadline."""


@dataclass(frozen=True, slots=True)
class Lent:
    """Blocks pinned for a peer: index in its request, slot, checksum."""

    lease_id: LeaseId
    blocks: tuple[tuple[int, BlockId, bytes | None], ...]


@dataclass(slots=True)
class HotTier(Host):
    # Engines come and go.

    async def attach(self, scope: ModelScope, connection: int) -> BlockPool:
        """The pool for an engine of this layout, built for the first one that asks.

        Errors: LayoutMismatch; ConfigError when the pool does not fit the budget or the machine.
        """
        async with self._building:
            if self._built is None:
                # Making the memory resident takes a second for a few GiB: leases are renewed meanwhile.
                # So are blocks of an earlier life adopted: nobody else knows of the core until it is built.
                core, pool = await asyncio.to_thread(
                    make, self.settings, scope.layout, self.journal, self.policies, self.shares
                )
                self._built = self._build(scope, core, pool)
                self._made.set()
        if scope.layout != self._built.scope.layout:
            raise LayoutMismatch(engine=scope.layout.describe(), worker=self._built.scope.layout.describe())
        self._engines[connection] = scope
        return self._built.pool

    def detach(self, connection: int) -> int:
        """The engine is gone: all it held comes back. Returns how many leases ended."""
        self._engines.pop(connection, None)
        if self._built is None:
            return 0
        n_leases = drop_connection(self._built.core, connection, now=self.clock.now())
        self._pump()
        return n_leases

    # What engines ask.

    async def match(
        self,
        *,
        connection: int,
        tenant: TenantId,
        scope_id: bytes,
        hashes: Sequence[BlockHash],
        asked_tokens: int,
        hints: Hints = NO_HINTS,
    ) -> tuple[Lease, int, int]:
        """The lease, and how many blocks after the hot ones peers and Redis are said to have."""
        core = self._core()
        lease = match(
            core,
            hashes,
            connection=connection,
            tenant=tenant,
            scope_id=scope_id,
            asked_tokens=asked_tokens,
            now=self.clock.now(),
            hints=hints,
        )
        if core.sampler is not None:
            self._fold_soon(core.sampler)
        if self.journal is not None:
            self.journal.used(hashes[: len(lease.pinned)])
        below = hashes[len(lease.pinned) :]
        if not below:
            return lease, 0, 0
        try:
            async with asyncio.timeout(self.redis.lookup_timeout_s):  # the tier's own is for each piece of the answer
                whereabouts = await self.lookup(below, timed=True)
        except (TierError, TimeoutError):  # counted by the tier; a tier that cannot say is a miss
            return lease, 0, 0
        origins = origins_of(whereabouts, live=self.live_peers)
        found = plan_fetch(core, lease, origins, now=self.clock.now())
        if core.jobs:  # probes
            self._pump()
        return lease, *found

    async def load(self, lease: Lease, *, deadline_s: float) -> None:
        """Bring up what the lease's origins offer; what is there at the deadline, or at the end of its plan's
        patience, is pinned in the lease."""
        if not lease.origins:
            return
        core, n_hot = self._core(), len(lease.pinned)
        lease.trace = here()
        op = start_load(core, lease)
        self._pump()
        began = self.clock.now()
        ends_at = began + time_for(lease, asked_s=deadline_s)
        while not op.done and (left := ends_at - self.clock.now()) > 0:
            await self.progressed(left)
        end_load(core, lease, op, asked_s=deadline_s, took_s=self.clock.now() - began)
        if self.journal is not None and lease.connection != OWN_CONNECTION:
            self.journal.used(lease.hashes[n_hot : len(lease.pinned)])

    def open(
        self,
        *,
        connection: int,
        tenant: TenantId,
        scope_id: bytes,
        hashes: Sequence[BlockHash],
        hints: Hints = NO_HINTS,
    ) -> Lease:
        core = self._core()
        lease = open_lease(core, hashes, connection=connection, tenant=tenant, scope_id=scope_id)
        saving(core, lease, now=self.clock.now(), hints=hints)
        return lease

    async def allocate(self, lease: Lease, *, n_blocks_max: int, wait_s: float) -> Grant:
        """Slots to fill; waits for room to be made, at the end without copies of what leaves."""
        core = self._core()
        assert self._built is not None  # else there was no core
        handoff = self._built.handoff
        ends_at = self.clock.now() + wait_s
        while True:
            left = ends_at - self.clock.now()
            if lease.lease_id not in core.leases:
                raise OwnershipError(f"lease {lease.lease_id} ended meanwhile")
            grant = take(core, handoff, lease, n_blocks_max=n_blocks_max, force=left <= 0)
            self._turned(core, has_moved=bool(grant.block_ids))
            self._crowded = self._crowded or grant.shortfall in (Shortfall.SOON, Shortfall.FULL)
            if grant.block_ids or grant.shortfall is not Shortfall.SOON or left <= 0:
                return grant
            await self.progressed(left)

    async def commit(self, lease: Lease, checksums: Sequence[bytes | None]) -> int:
        """How many; in the journal's strict mode once that is durable."""
        core = self._core()
        n_blocks = commit(core, lease, checksums)
        self._pump()
        if n_blocks:
            await self.durable()
        return n_blocks

    async def durable(self) -> None:
        """In the journal's strict mode: until what became ready is on disk."""
        if self.journal is not None and self.journal.strict:
            await self.journal.durable(self._share_events(self._core(), self.journal))

    def release(self, lease_id: LeaseId, *, connection: int, used_tokens: int, own_tokens: int = 0) -> bool:
        """False when the lease had ended before."""
        core, now = self._core(), self.clock.now()
        expire(core, now)
        try:
            lease = core.lease(lease_id, connection=connection)
        except OwnershipError:
            return False
        release(core, lease, used_tokens=used_tokens, own_tokens=own_tokens, now=now)
        return True

    def holds(self, lease_id: LeaseId, *, connection: int) -> bool:
        """Whether that lease's pins are held now."""
        core = self._core()
        expire(core, self.clock.now())
        lease = core.leases.get(lease_id)
        return lease is not None and lease.connection == connection

    def label_of(self, tenant: TenantId) -> str:
        """The sharing label of the tenant's blocks."""
        return self._core().ledger.policy(tenant).label

    def note_prefill(self, n_tokens: int, took_s: float) -> None:
        """An engine says how long it computed."""
        if self._built is not None:
            self._built.core.prefill.note(n_tokens, took_s)

    def close_session(self, tenant: TenantId, session: str) -> None:
        if self._built is not None:
            close_session(self._built.core, tenant, session, now=self.clock.now())

    def lease(self, lease_id: LeaseId, *, connection: int) -> Lease:
        return self._core().lease(lease_id, connection=connection)

    def checksums(self, lease: Lease) -> list[bytes | None]:
        records = self._core().table.records
        return [records[block_id].checksum for block_id in lease.pinned]

    # What sequences ask: see worker.sequence_server.

    async def grow(self, sequence: TokenSequence, extension: Extension, *, wait_s: float) -> Appended:
        """append, waiting for room; at the end without copies of what leaves. Errors: as ``append``."""
        core = self._core()
        assert self._built is not None  # else there was no core
        ends_at = self.clock.now() + wait_s
        while True:
            left = ends_at - self.clock.now()
            appended = None
            try:
                appended = grow(core, self._built.handoff, sequence, extension, force=left <= 0)
            except CapacityError:
                self._crowded = True
                raise
            finally:
                self._turned(core, has_moved=appended is not None)
            if appended is not None:
                return appended
            self._crowded = True
            if left <= 0:
                n_blocks = -(-len(extension.tokens) // core.options.block_tokens)
                raise out_of_blocks(core, sequence, n_blocks, Shortfall.SOON)
            await self.progressed(left)

    # What peers ask.

    def lend(self, hashes: Sequence[BlockHash], *, scope_id: bytes) -> Lent | None:
        """Pin for a peer whichever of these are here; None while there is no pool."""
        if self._built is None:
            return None
        core = self._built.core
        lease, indices = lend(
            core,
            hashes,
            scope_id=scope_id,
            connection=PEER_CONNECTION,
            now=self.clock.now(),
            lease_s=LEND_LEASE_S,
        )
        records = core.table.records
        blocks = zip(indices, lease.pinned, strict=True)
        return Lent(lease.lease_id, tuple((index, b, records[b].checksum) for index, b in blocks))

    def take_back(self, lent: Lent) -> bool:
        return self.release(lent.lease_id, connection=PEER_CONNECTION, used_tokens=0)

    # What coordinators ask.

    def explain(self, request: Explain | Recent) -> Explained:
        """What happened to blocks, as far as this node remembers, and what those asked for are now.

        Errors: ProtocolError for more than one answer can hold, or no hashes.
        """
        core = None if self._built is None else self._built.core
        if core is not None:
            self._turned(core)
        return explain(core, self.why, request)
