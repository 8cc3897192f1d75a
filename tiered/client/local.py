"""CacheClient with the core in this process: for one engine without a worker, for tests, and for measurements.

The same core, pool, seam and Redis tier as in a worker; a lock makes this host the core's one caller.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from tiered.client.port import Chain, Fill, Loaded, Match, Saved, Voucher
from tiered.client.saving import run_save
from tiered.client.sequences import SequenceHandle, SequenceHost
from tiered.clock import Clock, SystemClock
from tiered.codec.codecs import codec_for
from tiered.config import PoolSettings
from tiered.core.allocate import Grant, Shortfall
from tiered.core.commit import commit
from tiered.core.core import CacheCore
from tiered.core.lease import Lease
from tiered.core.match import match, open_lease
from tiered.core.options import core_options, pool_blocks
from tiered.core.origins import origins_of
from tiered.core.planning import end_load, plan_fetch, time_for
from tiered.core.promote import start_load
from tiered.core.pump import pump, take
from tiered.core.release import expire, release
from tiered.core.requests import close_session, saving
from tiered.errors import OwnershipError, TierError
from tiered.hashing.chain import Extras
from tiered.hashing.scope import ModelScope, scope_id
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.seam.driver import Driver
from tiered.seam.handoff import Handoff
from tiered.tenancy.policy import TenantPolicy
from tiered.tiers.redis.tier import RedisTier
from tiered.types import NO_HINTS, BlockHash, Hints, LeaseId, TenantId

_CONNECTION = 1


class LocalClient:
    """Owns a pool and a core. ``redis`` is the lower tier, or None for a hot tier alone; it is not closed here."""

    def __init__(
        self, scope: ModelScope, settings: PoolSettings, *, redis: RedisTier | None = None, clock: Clock | None = None
    ) -> None:
        self.scope = scope
        self._clock = clock or SystemClock()
        self._redis = redis
        self._pool = BlockPool(scope.layout, pool_blocks(settings, scope.layout), device=settings.device)
        options = core_options(settings, scope.layout, self._pool.n_blocks, lower_tier=redis is not None)
        self.core = CacheCore(options, self._pool.n_blocks)
        self._changed = threading.Condition()
        self._handoff = Handoff(queue_jobs_max=256, notify=self._wake)
        self._driver = Driver(
            self._pool, self._handoff, redis=redis, peers=None, n_fetchers=3, staging_blocks=options.leaving_max
        )
        self._sequences = SequenceHost(self.core, self._pool, self._handoff, self._changed, _CONNECTION)

    @property
    def layout(self) -> KvLayout:
        return self.scope.layout

    @property
    def pool(self) -> BlockPool:
        return self._pool

    def set_policies(self, policies: Mapping[TenantId, TenantPolicy]) -> None:
        """Errors: ConfigError for a codec that blocks of this layout cannot be stored with; nothing changes then."""
        for policy in policies.values():
            codec_for(policy.redis_codec, self.layout)
        with self._changed:
            self.core.set_policies(policies)
            pump(self.core, self._handoff)

    def chain(self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None) -> Chain:
        block_tokens = self.layout.block_tokens
        return Chain.of(self._root(tenant), tokens, tenant=tenant, block_tokens=block_tokens, extras=extras)

    def match(
        self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None, hints: Hints = NO_HINTS
    ) -> Match:
        return self.match_chain(self.chain(tokens, tenant=tenant, extras=extras), hints=hints)

    def match_chain(self, chain: Chain, *, hints: Hints = NO_HINTS, is_counted: bool = True) -> Match:
        hashes, asked_tokens = chain.hashes, chain.n_tokens if is_counted else 0
        now = self._clock.now()
        with self._changed:
            expire(self.core, now)
            lease = match(
                self.core,
                hashes,
                connection=_CONNECTION,
                tenant=chain.tenant,
                scope_id=chain.root,
                asked_tokens=asked_tokens,
                now=now,
                hints=hints,
            )
            records = self.core.table.records
            block_ids = tuple(lease.pinned)
            checksums = [records[block_id].checksum for block_id in block_ids]
        n_redis = self._look_below(lease, hashes)
        return Match(
            tenant=chain.tenant,
            scope_id=chain.root,
            hashes=hashes,
            asked_tokens=asked_tokens,
            lease=lease.lease_id,
            connection=_CONNECTION,
            block_ids=block_ids,
            checksums=checksums,
            n_redis=n_redis,
            voucher=Voucher(self._pool.name, _CONNECTION, lease.lease_id),
        )

    def _look_below(self, lease: Lease, hashes: Sequence[BlockHash]) -> int:
        below = hashes[len(lease.pinned) :]
        if self._redis is None or not below:
            return 0
        try:
            whereabouts = self._redis.lookup(below)
        except TierError:  # counted by the tier; a tier that cannot say is a miss
            return 0
        origins = origins_of(whereabouts, live={})
        with self._changed:
            found = plan_fetch(self.core, lease, origins, now=self._clock.now())
            pump(self.core, self._handoff, now=self._clock.now())
            return found[1]

    def load(self, match: Match, *, deadline_s: float = 5.0) -> Loaded:
        began = time.monotonic()
        with self._changed:
            try:
                lease = self._lease(match.lease)
            except OwnershipError:
                return Loaded()
            if lease.origins:
                op = start_load(self.core, lease)
                pump(self.core, self._handoff, now=self._clock.now())
                ends_at = began + time_for(lease, asked_s=deadline_s)
                while not op.done and (left := ends_at - time.monotonic()) > 0:
                    self._changed.wait(left)
                    pump(self.core, self._handoff, now=self._clock.now())
                end_load(self.core, lease, op, asked_s=deadline_s, took_s=time.monotonic() - began)
            records = self.core.table.records
            return Loaded(
                block_ids=tuple(lease.pinned),
                sources=tuple(lease.sources),
                checksums=[records[block_id].checksum for block_id in lease.pinned],
            )

    def release(self, match: Match, *, used_tokens: int, own_tokens: int = 0) -> bool:
        if match.lease is None:
            return False
        now = self._clock.now()
        with self._changed:
            expire(self.core, now)
            try:
                lease = self._lease(match.lease)
                release(self.core, lease, used_tokens=used_tokens, own_tokens=own_tokens, now=now)
            except OwnershipError:
                return False
            pump(self.core, self._handoff)
            return True

    def vouch(self, voucher: Voucher) -> bool:
        with self._changed:
            expire(self.core, self._clock.now())
            return voucher.pool == self._pool.name and LeaseId(voucher.lease) in self.core.leases

    def save(
        self,
        tokens: Sequence[int],
        *,
        tenant: TenantId,
        fill: Fill,
        extras: Extras | None = None,
        wait_s: float = 0.25,
        hints: Hints = NO_HINTS,
    ) -> Saved:
        chain = self.chain(tokens, tenant=tenant, extras=extras)
        return self.save_chain(chain, fill=fill, wait_s=wait_s, hints=hints)

    def save_chain(self, chain: Chain, *, fill: Fill, wait_s: float = 0.25, hints: Hints = NO_HINTS) -> Saved:
        hashes, tenant = chain.hashes, chain.tenant
        with self._changed:
            lease = open_lease(self.core, hashes, connection=_CONNECTION, tenant=tenant, scope_id=chain.root)
            saving(self.core, lease, now=self._clock.now(), hints=hints)
        try:
            session = _Session(self, lease)
            return run_save(session, self._pool, tenant=tenant, n_blocks=len(hashes), fill=fill, wait_s=wait_s)
        finally:
            with self._changed:
                release(self.core, lease, used_tokens=0, now=self._clock.now())
                pump(self.core, self._handoff)

    def note_prefill(self, *, n_tokens: int, took_s: float) -> None:
        with self._changed:
            self.core.prefill.note(n_tokens, took_s)

    def close_session(self, session: str, *, tenant: TenantId) -> None:
        with self._changed:
            close_session(self.core, tenant, session, now=self._clock.now())

    def open_sequence(
        self,
        *,
        tenant: TenantId,
        tokens: Sequence[int] = (),
        extras: Extras | None = None,
        is_private: bool = False,
    ) -> SequenceHandle:
        """A sequence that begins with ``tokens``: those from ``n_written`` on are to be computed and written.

        is_private: nothing of it is shared until :meth:`SequenceHandle.share`.
        Errors: as :meth:`SequenceHandle.append`; nothing is held then.
        """
        sequence = self._sequences.open(
            tenant=tenant, scope_id=self._root(tenant), extras=extras, is_private=is_private
        )
        try:
            sequence.append(tokens)
        except BaseException:
            sequence.drop()
            raise
        return sequence

    def close(self) -> None:
        self._driver.close(timeout_s=5.0)
        self._pool.close()

    def _root(self, tenant: TenantId) -> bytes:
        """The root of the tenant's chains: who may read its blocks is part of what they are."""
        return scope_id(self.scope, label=self.core.ledger.policy(tenant).label)

    def _lease(self, lease_id: LeaseId | None) -> Lease:
        return self.core.lease(lease_id or LeaseId(0), connection=_CONNECTION)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _Session:
    def __init__(self, client: LocalClient, lease: Lease) -> None:
        self._client = client
        self._lease = lease

    def allocate(self, *, n_blocks_max: int, wait_s: float) -> Grant:
        client, lease = self._client, self._lease
        ends_at = time.monotonic() + wait_s
        with client._changed:
            while True:
                left = ends_at - time.monotonic()
                grant = take(client.core, client._handoff, lease, n_blocks_max=n_blocks_max, force=left <= 0)
                if grant.block_ids or grant.shortfall is not Shortfall.SOON or left <= 0:
                    return grant
                client._changed.wait(left)
                pump(client.core, client._handoff)

    def commit(self, checksums: Sequence[bytes | None]) -> None:
        with self._client._changed:
            commit(self._client.core, self._lease, checksums)
            pump(self._client.core, self._client._handoff)
