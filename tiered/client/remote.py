"""CacheClient with the core in the worker beside us: requests over its Unix socket, bytes in the pool we map.

Whatever happens to the worker, the engine goes on: an answer that does not come in time is a miss, and the client
attaches again by itself. One request runs at a time; use one client per engine thread.

The socket is never closed while blocks are being filled, because the worker gives unfinished blocks to others as soon
as it sees the connection end.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from tiered.client.folder import WorkersFolder
from tiered.client.link import Link, open_link
from tiered.client.port import Chain, Fill, Loaded, Match, Saved, Voucher
from tiered.client.saving import run_save
from tiered.core.allocate import Grant, Shortfall
from tiered.errors import ProtocolError, TieredError, TierUnavailable
from tiered.estimate.prefill import is_measurement
from tiered.hashing.chain import Extras, join_hashes
from tiered.hashing.scope import ModelScope, scope_id, tenant_label
from tiered.layout import KvLayout
from tiered.log import get_logger
from tiered.pool.pool import BlockPool
from tiered.tracing import span
from tiered.types import NO_HINTS, BlockId, Hints, LeaseId, TenantId
from tiered.wire.messages import (
    Allocate,
    Allocated,
    CloseSession,
    Commit,
    Committed,
    EngineRequest,
    Failure,
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
from tiered.wire.numbers import pack_checksums, unpack_checksums, unpack_ids, unpack_sources

RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 5.0
"""Between attempts to attach again: doubled from the first to the last."""

LABEL_S: Final = 1.0
"""A tenant's change of sharing is to take effect within two seconds."""

ROOTS_MAX: Final = 4_096

_log = get_logger("tiered.client")
R = TypeVar("R")
T = TypeVar("T")


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

    def __init__(self, socket_path: str, scope: ModelScope, *, engine: str, options: RemoteOptions) -> None:
        self.scope = scope
        self._path = socket_path
        self._engine = engine
        self._options = options
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._attachments = itertools.count(1)
        self._closed = threading.Event()
        self._folder: WorkersFolder | None = None
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
        client._link = client._attach(client._options.attach_timeout_s)
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
        client._attach_in_a_thread(first_s=0.0)
        return client

    @classmethod
    def attach_in_folder(cls, folder: Path, scope: ModelScope, *, engine: str = "engine") -> RemoteClient:
        """As :meth:`attach_later`, at one of the workers that listen in the folder.

        For engines that have one client: two of them may find themselves at two workers.
        """
        client = cls(str(folder), scope, engine=engine, options=RemoteOptions())
        client._folder = WorkersFolder(folder)
        client._attach_in_a_thread(first_s=0.0)
        return client

    @property
    def layout(self) -> KvLayout:
        return self.scope.layout

    @property
    def pool(self) -> BlockPool | None:
        link = self._link
        return None if link is None else link.pool

    @property
    def node(self) -> str:
        """The worker's node while attached, else ''."""
        link = self._link
        return "" if link is None else link.node

    @property
    def attached(self) -> bool:
        return self._link is not None

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
        with traced, self._lock:
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
                link = self._link
                assert link is not None  # it is what has just answered
                return replace(
                    nothing,
                    lease=LeaseId(reply.lease),
                    connection=link.attachment,
                    voucher=Voucher(link.pool.name, link.connection_id, reply.lease),
                    block_ids=self._block_ids(reply.block_ids),
                    checksums=unpack_checksums(reply.checksums),
                    n_peer=reply.n_peer,
                    n_redis=reply.n_redis,
                    trace=traced.name_to_others,
                )

            found = self._call(request, Matched, read, timeout_s=self._options.call_timeout_s) or nothing
            traced.say(n_hot=len(found.block_ids), n_peer=found.n_peer, n_redis=found.n_redis)
            return found

    def load(self, match: Match, *, deadline_s: float = 5.0) -> Loaded:
        with span("tiered.load", parent=match.trace) as traced, self._lock:
            if match.lease is None or match.connection != self._attachment():
                return Loaded()
            request = Load(lease=match.lease, deadline_s=deadline_s, trace=traced.name_to_others)

            def read(reply: LoadedMessage) -> Loaded:
                return Loaded(
                    block_ids=self._block_ids(reply.block_ids),
                    sources=unpack_sources(reply.sources),
                    checksums=unpack_checksums(reply.checksums),
                )

            timeout_s = deadline_s + self._options.grace_s
            loaded = self._call(request, LoadedMessage, read, timeout_s=timeout_s) or Loaded()
            traced.say(n_blocks=len(loaded.block_ids))
            return loaded

    def release(self, match: Match, *, used_tokens: int, own_tokens: int = 0) -> bool:
        with self._lock:
            if match.lease is None or match.connection != self._attachment():
                return False
            request = Release(lease=match.lease, used_tokens=used_tokens, own_tokens=own_tokens)
            timeout_s = self._options.call_timeout_s
            return self._call(request, Released, lambda reply: reply.held, timeout_s=timeout_s) or False

    def vouch(self, voucher: Voucher) -> bool:
        with self._lock:
            if self._link is None or self._link.pool.name != voucher.pool:
                return False
            request = Vouch(connection=voucher.connection, lease=voucher.lease)
            timeout_s = self._options.call_timeout_s
            return self._call(request, Vouched, lambda reply: reply.held, timeout_s=timeout_s) or False

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
        with span("tiered.save", tenant=tenant, n_blocks=n_blocks) as traced, self._lock:
            request = Open(tenant=tenant, scope_id=chain.root, hashes=join_hashes(chain.hashes), hints=hints)
            timeout_s = self._options.call_timeout_s
            lease = self._call(request, Opened, lambda reply: reply.lease, timeout_s=timeout_s)
            pool = self.pool
            if lease is None or pool is None:
                return Saved(reason="unavailable", answer="refused: unavailable")
            session = _Session(self, lease)
            try:
                saved = run_save(session, pool, tenant=tenant, n_blocks=n_blocks, fill=fill, wait_s=wait_s)
                traced.say(n_stored=saved.n_stored)
                return saved
            except TierUnavailable:
                return Saved(reason="unavailable", answer="refused: unavailable")
            finally:
                ended = Release(lease=lease, used_tokens=0)
                self._call(ended, Released, lambda reply: reply.held, timeout_s=timeout_s)

    def note_prefill(self, *, n_tokens: int, took_s: float) -> None:
        if not is_measurement(n_tokens, took_s):
            return
        with self._lock:
            report = Prefilled(n_tokens=n_tokens, took_s=took_s)
            self._call(report, PrefillNoted, lambda _: None, timeout_s=self._options.call_timeout_s)

    def close_session(self, session: str, *, tenant: TenantId) -> None:
        with self._lock:
            request = CloseSession(tenant=tenant, session=session)
            self._call(request, SessionClosed, lambda _: None, timeout_s=self._options.call_timeout_s)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._link is not None:  # else the thread that attaches again sees to it
                self._part()

    def _root(self, tenant: TenantId) -> bytes:
        """The root of the tenant's chains: who may read its blocks is part of what they are.

        Asked for again after ``LABEL_S``, so that a change of sharing is seen; private while no worker answers.
        """
        known = self._roots.get(tenant)
        now = time.monotonic()
        if known is not None and now < known[1]:
            return known[0]
        with self._lock:
            timeout_s = self._options.call_timeout_s
            label = self._call(Sharing(tenant=tenant), Shared, lambda reply: reply.label, timeout_s=timeout_s)
        root = scope_id(self.scope, label=tenant_label(tenant) if label is None else label)
        if label is not None:
            if len(self._roots) >= ROOTS_MAX:
                self._roots.clear()
            self._roots[tenant] = root, now + LABEL_S
        return root

    # The connection.

    def _attachment(self) -> int:
        return 0 if self._link is None else self._link.attachment

    def _call(
        self, request: EngineRequest, expected: type[R], read: Callable[[R], T], *, timeout_s: float
    ) -> T | None:
        """What ``read`` makes of the reply, or None when there is no worker that answers.

        A refusal is logged, and None. A reply that makes no sense (``read`` raises ValueError) loses the worker.
        """
        if self._link is None:
            return None
        asked = type(request).__name__
        try:
            reply = self._link.connection.call(request, timeout_s=timeout_s)
            if isinstance(reply, expected):
                return read(reply)
            if not isinstance(reply, Failure):
                raise ValueError(f"unexpected {type(reply).__name__}")
            _log.warning("refused by the worker", request=asked, reason=reply.message)
        except TieredError as error:
            self._lose(error)
        except ValueError as error:
            self._lose(ProtocolError(f"the reply to {asked} makes no sense: {error}"))
        return None

    def _block_ids(self, packed: bytes) -> list[BlockId]:
        """ValueError for an id that lies outside the pool: reading there would read something else."""
        block_ids = unpack_ids(packed)
        if self._link is not None and block_ids and max(block_ids) >= self._link.pool.n_blocks:
            raise ValueError(f"block {max(block_ids)} of a pool of {self._link.pool.n_blocks}")
        return block_ids

    def _lose(self, error: TieredError) -> None:
        _log.warning("worker lost; going on without a cache", socket=self._path, error=str(error))
        self._detach()
        self._attach_in_a_thread(first_s=RETRY_FIRST_S)

    def _detach(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _part(self) -> None:
        """For good."""
        self._detach()
        if self._folder is not None:
            self._folder.leave()

    def _attach_in_a_thread(self, *, first_s: float) -> None:
        threading.Thread(target=self._attach_again, args=(first_s,), name="attach-again", daemon=True).start()

    def _attach_again(self, wait_s: float) -> None:
        """Until it works, in a thread of its own: no request ever waits for a worker to come back."""
        said = ""
        while not self._closed.wait(wait_s):
            wait_s = min(max(2 * wait_s, RETRY_FIRST_S), RETRY_MAX_S)
            try:
                link = self._attach(self._options.attach_timeout_s)
            except TieredError as error:
                if str(error) != said:  # a worker that is away is said once, and so is one of another model
                    _log.warning("not attached; going on without a cache", socket=self._path, reason=str(error))
                    said = str(error)
                continue
            with self._lock:
                self._link = link
                if self._closed.is_set():
                    break
            _log.info("attached", socket=self._path, node=link.node)
            return
        with self._lock:
            self._part()

    def _attach(self, timeout_s: float) -> Link:
        def open_at(path: str) -> Link:
            return open_link(
                path,
                self.scope,
                engine=self._engine,
                attachment=next(self._attachments),
                connect_timeout_s=self._options.call_timeout_s,
                timeout_s=timeout_s,
            )

        return open_at(self._path) if self._folder is None else self._folder.attach(open_at)


class _Session:
    """The client's side of one save; the client's lock is held for all of it."""

    def __init__(self, client: RemoteClient, lease: int) -> None:
        self._client = client
        self._lease = lease

    def allocate(self, *, n_blocks_max: int, wait_s: float) -> Grant:
        request = Allocate(lease=self._lease, n_blocks_max=n_blocks_max, wait_s=wait_s)
        timeout_s = wait_s + self._client._options.grace_s

        def read(reply: Allocated) -> Grant:
            block_ids = self._client._block_ids(reply.block_ids)
            gave = {TenantId(tenant): n_blocks for tenant, n_blocks in reply.gave.items()}
            return Grant(reply.first_index, tuple(block_ids), Shortfall(reply.shortfall), gave)

        grant = self._client._call(request, Allocated, read, timeout_s=timeout_s)
        if grant is None:
            raise TierUnavailable("the worker went away during a save")
        return grant

    def commit(self, checksums: Sequence[bytes | None]) -> None:
        request = Commit(lease=self._lease, checksums=pack_checksums(checksums))
        timeout_s = self._client._options.call_timeout_s
        if self._client._call(request, Committed, lambda reply: reply.n_blocks, timeout_s=timeout_s) is None:
            raise TierUnavailable("the worker went away during a save")
