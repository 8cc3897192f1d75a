"""The core's host in a worker: gives it one caller at a time (the event loop) and waits on its behalf.

Owns the pool once the first engine has said its layout, the seam and its threads. All methods run on the loop;
movers only wake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from tiered.blocks.state import BlockState
from tiered.clock import Clock
from tiered.config import PoolSettings
from tiered.core.allocate import Grant, Shortfall
from tiered.core.commit import commit
from tiered.core.copies import SecondCopies
from tiered.core.core import CacheCore, DirectoryEvents
from tiered.core.fetch_plan import PlanCounters
from tiered.core.lease import Lease
from tiered.core.lend import lend
from tiered.core.match import match, open_lease
from tiered.core.origins import origins_of
from tiered.core.planning import end_load, plan_fetch, time_for
from tiered.core.promote import start_load
from tiered.core.pump import grow, pump, take
from tiered.core.release import drop_connection, expire, release
from tiered.core.requests import close_session, saving
from tiered.core.sequences import out_of_blocks
from tiered.core.stats import node_stats
from tiered.core.warm import spare_slots
from tiered.errors import CapacityError, LayoutMismatch, OwnershipError, TierError
from tiered.hashing.scope import ModelScope, encode_scope
from tiered.jobs import PeerAddress
from tiered.pool.pool import BlockPool
from tiered.sequence.sequence import Appended, Extension, TokenSequence
from tiered.tenancy.policy import Share, TenantPolicy
from tiered.tiers.peer import PeerTier
from tiered.tiers.redis.tier import RedisTier
from tiered.types import (
    NO_HINTS,
    BlockHash,
    BlockId,
    DrainProgress,
    Epoch,
    Hints,
    LeaseId,
    NodeId,
    NodeStats,
    PrefixUse,
    TenantId,
    Whereabouts,
)
from tiered.wire.messages import Explain, Explained, Recent
from worker.building import Built, build, make
from worker.explain import explain
from worker.journal import HotJournal, JournalSnapshot
from worker.why import WhyRing

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
class HotTier:
    settings: PoolSettings
    redis: RedisTier
    peers: PeerTier
    clock: Clock
    live_peers: Mapping[NodeId, PeerAddress] = field(default_factory=dict)
    """Other nodes whose lease is running; replaced whole by the membership task."""
    leaving: Mapping[NodeId, Epoch] = field(default_factory=dict)
    """Lives of nodes that were asked to drain, as the drain's task last read."""
    drain: DrainProgress = field(default_factory=DrainProgress)
    """What the drain's task says of itself."""
    prefixes: tuple[PrefixUse, ...] = ()
    """What the search for the prefixes used most has found last."""
    journal: HotJournal | None = None
    why: WhyRing | None = None
    _draining: bool = False
    policies: Mapping[TenantId, TenantPolicy] = field(default_factory=dict)
    shares: Mapping[TenantId, Share] = field(default_factory=dict)
    """Of the tenants' totals, as lent to this node."""
    _built: Built | None = None
    _closed: bool = False
    _building: asyncio.Lock = field(default_factory=asyncio.Lock)
    _made: asyncio.Event = field(default_factory=asyncio.Event)
    _progress: asyncio.Event = field(default_factory=asyncio.Event)
    _engines: dict[int, ModelScope] = field(default_factory=dict)
    _crowded: bool = False
    """Whether an engine has ever found no room: from then on nothing is warmed up."""
    _unannounced: dict[BlockHash, bool] = field(default_factory=dict)
    """Events that the journal has had already and the directory has not."""
    _lookups: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "lookup"))

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
        if self.journal is not None:
            self.journal.used(hashes[: len(lease.pinned)])
        below = hashes[len(lease.pinned) :]
        if not below:
            return lease, 0, 0
        try:
            async with asyncio.timeout(self.redis.lookup_timeout_s):  # the tier's own is for each piece of the answer
                whereabouts = await self.lookup(below)
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
            self._turned(core)
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

    def release(self, lease_id: LeaseId, *, connection: int, used_tokens: int) -> bool:
        """False when the lease had ended before."""
        core, now = self._core(), self.clock.now()
        expire(core, now)
        try:
            lease = core.lease(lease_id, connection=connection)
        except OwnershipError:
            return False
        release(core, lease, used_tokens=used_tokens, now=now)
        return True

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

    @property
    def core(self) -> CacheCore:
        """For their verbs; a turn follows. Errors: OwnershipError before the first engine."""
        return self._core()

    def turn(self) -> None:
        self._pump()

    async def grow(self, sequence: TokenSequence, extension: Extension, *, wait_s: float) -> Appended:
        """append, waiting for room; at the end without copies of what leaves. Errors: as ``append``."""
        core = self._core()
        assert self._built is not None  # else there was no core
        ends_at = self.clock.now() + wait_s
        while True:
            left = ends_at - self.clock.now()
            try:
                appended = grow(core, self._built.handoff, sequence, extension, force=left <= 0)
            except CapacityError:
                self._crowded = True
                raise
            finally:
                self._turned(core)
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

    # What second copies ask: see worker.second and worker.lost.

    @property
    def seconds(self) -> SecondCopies | None:
        """What is known of them; None while there is no pool."""
        return None if self._built is None else self._built.core.seconds

    @property
    def scopes(self) -> list[ModelScope]:
        """Of the models whose blocks engines here can read."""
        first = [] if self._built is None else [self._built.scope]
        return [*first, *(scope for scope in self._engines.values() if scope not in first)]

    # What the journal's task asks.

    async def made(self) -> BlockPool:
        """The pool, once the first engine has attached."""
        await self._made.wait()
        assert self._built is not None
        return self._built.pool

    @property
    def has_room(self) -> bool:
        """Whether blocks may come up that nobody has asked for: some is free, and no engine ever found none."""
        return not self._crowded and spare_slots(self._core()) > 0

    async def lookup(self, hashes: Sequence[BlockHash]) -> list[Whereabouts]:
        """What the shared state knows of each block. Errors: TierError."""
        return await asyncio.get_running_loop().run_in_executor(self._lookups, self.redis.lookup, hashes)

    # What a drain asks.

    @property
    def draining(self) -> bool:
        """Whether nothing new is admitted; from before the first engine on, if so set."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        if self._built is not None:
            self._built.core.draining = draining

    def by_depth(self, hashes: Sequence[BlockHash]) -> list[BlockHash]:
        """Those of them that are here, the shallowest first."""
        if self._built is None:
            return []
        core = self._built.core
        held = [(core.table[b].depth, h) for h in hashes if (b := core.index.find(h)) is not None]
        return [block_hash for _, block_hash in sorted(held)]

    async def copied(self, *, timeout_s: float) -> bool:
        """Until no copy is under way and nothing that was copied waits for Redis; False if that takes longer."""
        if self._built is None:
            return True
        core, ends_at = self._built.core, self.clock.now() + timeout_s
        while core.recalled or core.leaving:
            left = ends_at - self.clock.now()
            if left <= 0:
                return False
            await self.progressed(left)
        return await asyncio.to_thread(self._built.driver.written, timeout_s=ends_at - self.clock.now())

    # What the cluster's tasks ask.

    def set_policies(self, policies: Mapping[TenantId, TenantPolicy]) -> None:
        self.policies = policies
        self._bind()

    def set_shares(self, shares: Mapping[TenantId, Share]) -> None:
        self.shares = shares
        self._bind()

    def _bind(self) -> None:
        if self._built is not None:
            self._built.core.set_policies(self.policies, self.shares)
            self._pump()

    def drain_events(self) -> DirectoryEvents:
        """For the directory: what came and left since the last time."""
        if self._built is None:
            return DirectoryEvents((), ())
        if self.journal is None:
            return self._built.core.drain_events()
        self._share_events(self._built.core, self.journal)
        events, self._unannounced = self._unannounced, {}
        return DirectoryEvents(
            stored=tuple(block_hash for block_hash, here in events.items() if here),
            removed=tuple(block_hash for block_hash, here in events.items() if not here),
        )

    def write_journal(self, *, uses: bool) -> None:
        """Once in a while: hand what came and left to the journal. uses: and what was used."""
        if self._built is not None and self.journal is not None:
            self._share_events(self._built.core, self.journal)
            if uses:
                self.journal.note_uses(self._built.core)

    def resident_hashes(self) -> list[BlockHash]:
        return [] if self._built is None else self._built.core.resident_hashes()

    def tick(self) -> None:
        """Once in a while: end leases whose time is over, and work ahead of need."""
        if self._built is not None:
            expire(self._built.core, self.clock.now())
            self._built.core.sources.keep(self.live_peers)
            self._pump()

    def stats(self) -> NodeStats:
        if self._built is None:
            return NodeStats(engines=len(self._engines), drain=self.drain)
        built = self._built
        stats = node_stats(
            built.core,
            engines=len(self._engines),
            layout=built.scope.layout.describe(),
            scopes=sorted({encode_scope(scope) for scope in self._engines.values()}),
        )
        return msgspec.structs.replace(stats, drain=self.drain, prefixes=self.prefixes)

    def blocks_by_state(self) -> dict[str, int]:
        if self._built is None:
            return {}
        return {state.name.lower(): self._built.core.blocks_in(state) for state in BlockState}

    @property
    def pool(self) -> BlockPool | None:
        return None if self._built is None else self._built.pool

    @property
    def plans(self) -> PlanCounters:
        return PlanCounters() if self._built is None else self._built.core.plans.copy()

    @property
    def copies_dropped(self) -> int:
        return 0 if self._built is None else self._built.driver.counters.copies_dropped

    def journal_snapshot(self) -> JournalSnapshot | None:
        return None if self.journal is None else self.journal.snapshot()

    async def close(self, *, timeout_s: float) -> None:
        """Stop the movers; what is staged for Redis is still written. Harmless when done before."""
        if self._built is not None and not self._closed:
            self._closed = True
            self.write_journal(uses=True)
            await asyncio.to_thread(self._built.driver.close, timeout_s=timeout_s)
            self._built.pool.close()
        if self.journal is not None:
            await asyncio.to_thread(self.journal.close)
        self._lookups.shutdown(wait=False, cancel_futures=True)

    # Inside.

    def _core(self) -> CacheCore:
        if self._built is None:
            raise OwnershipError("no engine has attached yet, so there is no pool")
        return self._built.core

    def _build(self, scope: ModelScope, core: CacheCore, pool: BlockPool) -> Built:
        core.set_policies(self.policies, self.shares)  # they may have changed while it was made
        core.draining = self._draining
        loop = asyncio.get_running_loop()
        return build(
            scope,
            core,
            pool,
            redis=self.redis,
            peers=self.peers,
            notify=lambda: _wake(loop, self._pump),
            why=self.why,
        )

    def _share_events(self, core: CacheCore, journal: HotJournal) -> Future[bool]:
        """One drained batch to both: the journal now, the directory when it asks."""
        events = core.drain_events()
        self._unannounced.update(dict.fromkeys(events.stored, True))
        self._unannounced.update(dict.fromkeys(events.removed, False))
        return journal.note(core, events)

    def _pump(self) -> None:
        if self._built is not None:
            pump(self._built.core, self._built.handoff, now=self.clock.now())
            self._turned(self._built.core)

    def _turned(self, core: CacheCore) -> None:
        """A turn of the seam is over: who waits for one goes on, and what happened is remembered."""
        self._progress.set()
        if self.why is not None and core.why is not None:
            self.why.turn(core.why.take())

    async def progressed(self, timeout_s: float) -> None:
        """Until the next turn of the seam, or the timeout."""
        self._progress.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._progress.wait()
        except TimeoutError:
            return


def _wake(loop: asyncio.AbstractEventLoop, turn: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(turn)
