"""The core's host in a worker: gives it one caller at a time (the event loop), and turns the seam.

Owns the pool once the first engine has said its layout, the seam, its threads, and what the worker's tasks ask: of
the journal, of a drain, of second copies, of membership. What engines and peers ask is :mod:`worker.hot_tier`'s. All
methods run on the loop; movers only wake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from tiered.blocks.state import BlockState
from tiered.clock import Clock
from tiered.config import PoolSettings
from tiered.core.copies import SecondCopies
from tiered.core.core import CacheCore, DirectoryEvents
from tiered.core.fetch_plan import PlanCounters
from tiered.core.pump import pump
from tiered.core.release import expire
from tiered.core.stats import node_stats
from tiered.core.warm import spare_slots
from tiered.curve.sampler import Sampler
from tiered.errors import OwnershipError
from tiered.hashing.scope import ModelScope, encode_scope
from tiered.jobs import PeerAddress
from tiered.pool.pool import BlockPool
from tiered.seam.driver import DriverCounters
from tiered.tenancy.policy import Share, TenantPolicy
from tiered.tiers.peer import PeerTier
from tiered.tiers.redis.tier import RedisTier
from tiered.types import (
    BlockHash,
    DrainProgress,
    Epoch,
    NodeId,
    NodeStats,
    NodeTraffic,
    PrefixUse,
    TenantId,
    Whereabouts,
)
from worker.building import Built, build
from worker.engine_timings import EngineTimings
from worker.journal import HotJournal, JournalSnapshot
from worker.why import WhyRing

FOLDED_BLOCKS: Final = 4_096
"""Of the notes for the curves of capacity, in one go: some 0.2 ms."""


@dataclass(slots=True)
class Host:
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
    timings: EngineTimings = field(default_factory=EngineTimings)
    """How long engines waited; kept by whoever serves them."""
    sent_bytes: Callable[[], int] = lambda: 0
    """What peers were sent of what is here, by whoever serves them."""
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
    _folds: bool = False
    """Whether notes for the curves of capacity will be folded soon."""
    _unannounced: dict[BlockHash, bool] = field(default_factory=dict)
    """Events that the journal has had already and the directory has not."""
    _lookups: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "lookup"))

    @property
    def core(self) -> CacheCore:
        """For their verbs; a turn follows. Errors: OwnershipError before the first engine."""
        return self._core()

    def turn(self) -> None:
        self._pump()

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

    async def lookup(self, hashes: Sequence[BlockHash], *, timed: bool = False) -> list[Whereabouts]:
        """What the shared state knows of each block. timed: for an engine. Errors: TierError."""
        look = partial(copy_context().run, self.redis.lookup, hashes, timed=timed)  # within the span that asks
        return await asyncio.get_running_loop().run_in_executor(self._lookups, look)

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
            return NodeStats(engines=len(self._engines), drain=self.drain, traffic=self._traffic())
        built = self._built
        stats = node_stats(
            built.core,
            engines=len(self._engines),
            layout=built.scope.layout.describe(),
            scopes=sorted({encode_scope(scope) for scope in self._engines.values()}),
        )
        return msgspec.structs.replace(stats, drain=self.drain, prefixes=self.prefixes, traffic=self._traffic())

    def _traffic(self) -> NodeTraffic:
        redis = self.redis.counters()
        return NodeTraffic(
            peer_received_bytes=self.peers.counters().received_bytes,
            peer_sent_bytes=self.sent_bytes(),
            redis_read_bytes=redis.bytes_read,
            redis_written_bytes=redis.bytes_written,
            breaker_open=int(redis.breaker_open),
        )

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
    def moved(self) -> DriverCounters:
        """What the movers have counted."""
        return DriverCounters() if self._built is None else self._built.driver.counters.copy()

    @property
    def charged_bytes(self) -> int:
        """To all tenants together."""
        return 0 if self._built is None else self._built.core.ledger.total_bytes()

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

    def _fold_soon(self, sampler: Sampler) -> None:
        """What requests noted for the curves of capacity, once this one is answered."""
        if not self._folds:
            self._folds = True
            asyncio.get_running_loop().call_soon(self._fold, sampler)

    def _fold(self, sampler: Sampler) -> None:
        """Slice by slice: who asks meanwhile comes in between."""
        self._folds = sampler.fold(FOLDED_BLOCKS)
        if self._folds:
            asyncio.get_running_loop().call_soon(self._fold, sampler)

    def _turned(self, core: CacheCore, *, has_moved: bool = True) -> None:
        """A turn of the seam is over: who waits for one goes on, and what happened is remembered.

        has_moved: False for a turn of who found no room; two that wait for some would keep each other awake.
        """
        if has_moved:
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
