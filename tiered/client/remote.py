"""CacheClient with the core in the worker beside us: requests over its Unix socket, bytes in the pool we map.

Owns the order of an engine's requests and what their replies are to it; whether there is a worker is
``tiered.client.worker``'s to see to. Whatever happens to it, the engine goes on: an answer that does not come in time
is a miss. One request runs at a time; use one client per engine thread.

The socket is never closed while blocks are being filled, because the worker gives unfinished blocks to others as soon
as it sees the connection end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tiered.client.folder import WorkersFolder
from tiered.client.port import Chain, Fill, Loaded, Match, Saved, Voucher
from tiered.client.saving import run_save
from tiered.client.worker import Worker
from tiered.core.allocate import Grant, Shortfall
from tiered.errors import TierUnavailable
from tiered.estimate.prefill import is_measurement
from tiered.hashing.chain import Extras, join_hashes
from tiered.hashing.scope import ModelScope, scope_id, tenant_label
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.tracing import span
from tiered.types import NO_HINTS, Hints, LeaseId, TenantId
from tiered.wire.messages import (
    Allocate,
    Allocated,
    CloseSession,
    Commit,
    Committed,
    Load,
    Matched,
    Open,
    Opened,
    Prefilled,
    PrefillNoted,
    Release,
    Released,
    SessionClosed,
    Shared,
    Sharing,
    Vouch,
    Vouched,
)
from tiered.wire.messages import (
    Loaded as LoadedMessage,
)
from tiered.wire.messages import (
    Match as MatchMessage,
)
from tiered.wire.numbers import pack_checksums, unpack_checksums, unpack_sources

LABEL_S: Final = 1.0
"""A tenant's change of sharing is to take effect within two seconds."""

ROOTS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Deadlines of one call. A worker that misses one is treated as gone."""

    attach_timeout_s: float = 10.0
    """The first engine's attach waits for the pool's memory to be made resident."""
    call_timeout_s: float = 0.5
    grace_s: float = 0.5
    """Added to the waits that a call itself names."""


class RemoteClient:
    """Attached to one worker. Build it with :meth:`attach`, which reports a first failure as an error."""

    def __init__(
        self,
        socket_path: str,
        scope: ModelScope,
        *,
        engine: str,
        options: RemoteOptions,
        folder: WorkersFolder | None = None,
    ) -> None:
        self.scope = scope
        self._grace_s = options.grace_s
        self._worker = Worker(
            socket_path,
            scope,
            engine=engine,
            folder=folder,
            attach_timeout_s=options.attach_timeout_s,
            call_timeout_s=options.call_timeout_s,
        )
        self._roots: dict[TenantId, tuple[bytes, float]] = {}
        """By tenant the root of its chains, and until when it is taken as it is."""

    @classmethod
    def attach(
        cls,
        socket_path: str,
        scope: ModelScope,
        *,
        engine: str = "engine",
        options: RemoteOptions | None = None,
    ) -> RemoteClient:
        """Attach now. Errors: LayoutMismatch; TierUnavailable or TierTimeout when no worker answers there."""
        client = cls(socket_path, scope, engine=engine, options=options or RemoteOptions())
        client._worker.attach()
        return client

    @classmethod
    def attach_later(
        cls,
        socket_path: str,
        scope: ModelScope,
        *,
        engine: str = "engine",
        options: RemoteOptions | None = None,
    ) -> RemoteClient:
        """Attach in a thread of its own, now or once a worker is there; without a cache until then."""
        client = cls(socket_path, scope, engine=engine, options=options or RemoteOptions())
        client._worker.attach_later()
        return client

    @classmethod
    def attach_in_folder(cls, folder: Path, scope: ModelScope, *, engine: str = "engine") -> RemoteClient:
        """As :meth:`attach_later`, at one of the workers that listen in the folder.

        For engines that have one client: two of them may find themselves at two workers.
        """
        client = cls(str(folder), scope, engine=engine, options=RemoteOptions(), folder=WorkersFolder(folder))
        client._worker.attach_later()
        return client

    @property
    def layout(self) -> KvLayout:
        return self.scope.layout

    @property
    def pool(self) -> BlockPool | None:
        link = self._worker.link
        return None if link is None else link.pool

    @property
    def node(self) -> str:
        """The worker's node while attached, else ''."""
        link = self._worker.link
        return "" if link is None else link.node

    @property
    def attached(self) -> bool:
        return self._worker.link is not None

    def chain(self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None) -> Chain:
        block_tokens = self.layout.block_tokens
        return Chain.of(self._root(tenant), tokens, tenant=tenant, block_tokens=block_tokens, extras=extras)

    def match(
        self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None, hints: Hints = NO_HINTS
    ) -> Match:
        return self.match_chain(self.chain(tokens, tenant=tenant, extras=extras), hints=hints)

    def match_chain(self, chain: Chain, *, hints: Hints = NO_HINTS, is_counted: bool = True) -> Match:
        asked_tokens = chain.n_tokens if is_counted else 0
        traced = span("tiered.match", tenant=chain.tenant, n_blocks=len(chain.hashes))
        with traced, self._worker.lock:
            request = MatchMessage(
                tenant=chain.tenant,
                scope_id=chain.root,
                hashes=join_hashes(chain.hashes),
                asked_tokens=asked_tokens,
                hints=hints,
                trace=traced.name_to_others,
            )
            nothing = Match(tenant=chain.tenant, scope_id=chain.root, hashes=chain.hashes, asked_tokens=asked_tokens)

            def read(reply: Matched) -> Match:
                link = self._worker.link
                assert link is not None  # it is what has just answered
                return replace(
                    nothing,
                    lease=LeaseId(reply.lease),
                    connection=link.attachment,
                    voucher=Voucher(link.pool.name, link.connection_id, reply.lease),
                    block_ids=self._worker.block_ids(reply.block_ids),
                    checksums=unpack_checksums(reply.checksums),
                    n_peer=reply.n_peer,
                    n_redis=reply.n_redis,
                    trace=traced.name_to_others,
                )

            found = self._worker.call(request, Matched, read) or nothing
            traced.say(n_hot=len(found.block_ids), n_peer=found.n_peer, n_redis=found.n_redis)
            return found

    def load(self, match: Match, *, deadline_s: float = 5.0) -> Loaded:
        with span("tiered.load", parent=match.trace) as traced, self._worker.lock:
            if match.lease is None or match.connection != self._worker.attachment:
                return Loaded()
            request = Load(lease=match.lease, deadline_s=deadline_s, trace=traced.name_to_others)

            def read(reply: LoadedMessage) -> Loaded:
                return Loaded(
                    block_ids=self._worker.block_ids(reply.block_ids),
                    sources=unpack_sources(reply.sources),
                    checksums=unpack_checksums(reply.checksums),
                )

            timeout_s = deadline_s + self._grace_s
            loaded = self._worker.call(request, LoadedMessage, read, timeout_s=timeout_s) or Loaded()
            traced.say(n_blocks=len(loaded.block_ids))
            return loaded

    def release(self, match: Match, *, used_tokens: int, own_tokens: int = 0) -> bool:
        with self._worker.lock:
            if match.lease is None or match.connection != self._worker.attachment:
                return False
            request = Release(lease=match.lease, used_tokens=used_tokens, own_tokens=own_tokens)
            return self._worker.call(request, Released, lambda reply: reply.held) or False

    def vouch(self, voucher: Voucher) -> bool:
        with self._worker.lock:
            if self.pool is None or self.pool.name != voucher.pool:
                return False
            request = Vouch(connection=voucher.connection, lease=voucher.lease)
            return self._worker.call(request, Vouched, lambda reply: reply.held) or False

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
        tenant, n_blocks = chain.tenant, len(chain.hashes)
        if not n_blocks:
            return Saved()
        with span("tiered.save", tenant=tenant, n_blocks=n_blocks) as traced, self._worker.lock:
            request = Open(tenant=tenant, scope_id=chain.root, hashes=join_hashes(chain.hashes), hints=hints)
            lease = self._worker.call(request, Opened, lambda reply: reply.lease)
            pool = self.pool
            if lease is None or pool is None:
                return Saved(reason="unavailable", answer="refused: unavailable")
            session = _Session(self._worker, lease, grace_s=self._grace_s)
            try:
                saved = run_save(session, pool, tenant=tenant, n_blocks=n_blocks, fill=fill, wait_s=wait_s)
                traced.say(n_stored=saved.n_stored)
                return saved
            except TierUnavailable:
                return Saved(reason="unavailable", answer="refused: unavailable")
            finally:
                ended = Release(lease=lease, used_tokens=0)
                self._worker.call(ended, Released, lambda reply: reply.held)

    def note_prefill(self, *, n_tokens: int, took_s: float) -> None:
        if not is_measurement(n_tokens, took_s):
            return
        with self._worker.lock:
            report = Prefilled(n_tokens=n_tokens, took_s=took_s)
            self._worker.call(report, PrefillNoted, lambda _: None)

    def close_session(self, session: str, *, tenant: TenantId) -> None:
        with self._worker.lock:
            request = CloseSession(tenant=tenant, session=session)
            self._worker.call(request, SessionClosed, lambda _: None)

    def close(self) -> None:
        self._worker.close()

    def _root(self, tenant: TenantId) -> bytes:
        """The root of the tenant's chains: who may read its blocks is part of what they are.

        Asked for again after ``LABEL_S``, so that a change of sharing is seen; private while no worker answers.
        """
        known = self._roots.get(tenant)
        now = time.monotonic()
        if known is not None and now < known[1]:
            return known[0]
        with self._worker.lock:
            label = self._worker.call(Sharing(tenant=tenant), Shared, lambda reply: reply.label)
        root = scope_id(self.scope, label=tenant_label(tenant) if label is None else label)
        if label is not None:
            if len(self._roots) >= ROOTS_MAX:
                self._roots.clear()
            self._roots[tenant] = root, now + LABEL_S
        return root


class _Session:
    """The client's side of one save; the worker's lock is held for all of it."""

    def __init__(self, worker: Worker, lease: int, *, grace_s: float) -> None:
        self._worker = worker
        self._lease = lease
        self._grace_s = grace_s

    def allocate(self, *, n_blocks_max: int, wait_s: float) -> Grant:
        request = Allocate(lease=self._lease, n_blocks_max=n_blocks_max, wait_s=wait_s)

        def read(reply: Allocated) -> Grant:
            block_ids = self._worker.block_ids(reply.block_ids)
            gave = {TenantId(tenant): n_blocks for tenant, n_blocks in reply.gave.items()}
            return Grant(reply.first_index, tuple(block_ids), Shortfall(reply.shortfall), gave)

        grant = self._worker.call(request, Allocated, read, timeout_s=wait_s + self._grace_s)
        if grant is None:
            raise TierUnavailable("the worker went away during a save")
        return grant

    def commit(self, checksums: Sequence[bytes | None]) -> None:
        request = Commit(lease=self._lease, checksums=pack_checksums(checksums))
        if self._worker.call(request, Committed, lambda reply: reply.n_blocks) is None:
            raise TierUnavailable("the worker went away during a save")
