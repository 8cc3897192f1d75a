"""One engine beside us, over its connection: each of its requests, answered.

Owns what is remembered of the engine between two requests. What is true of the pool the hot tier decides; how
connections come and go is the local server's business.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tiered import __version__
from tiered.core.lease import Lease
from tiered.errors import CapacityError, ConfigError, LayoutMismatch, OwnershipError, ProtocolError, ScopeMismatch
from tiered.hashing.chain import split_hashes
from tiered.hashing.scope import ModelScope, scope_id
from tiered.log import get_logger
from tiered.pool.share import cuda_handle, send_with_descriptor
from tiered.tenancy.policy import check_tenant_name
from tiered.tracing import span
from tiered.types import LeaseId, TenantId, TokenCounts
from tiered.wire.framing import encode
from tiered.wire.messages import (
    WIRE_MINOR,
    WIRE_VERSION,
    Allocate,
    Allocated,
    Attach,
    Attached,
    AttachedEngine,
    CloseSession,
    Commit,
    Committed,
    Describe,
    Described,
    EngineReply,
    EngineRequest,
    Failure,
    Load,
    Loaded,
    Match,
    Matched,
    Open,
    Opened,
    OpenSequence,
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
from tiered.wire.numbers import pack_checksums, pack_ids, pack_sources, unpack_checksums
from worker.hot_tier import HotTier
from worker.sequence_server import SEQUENCE_REQUESTS, SequenceServer

WAIT_S_MAX = 60.0
"""No request may ask the worker to wait longer, whatever it says."""

REPLY_S = 30.0
"""An engine that leaves its replies lying for this long is dropped, with all that it holds."""

PROMPT_TOKENS_MAX: Final = 1 << 27
"""No prompt is longer. It is added to sums that outlive the worker, and those have to stay within 64 bits."""

_log = get_logger("worker.local")


class Engine:
    """One engine's connection: its requests, answered. ``attached``: of all connections."""

    def __init__(
        self,
        hot: HotTier,
        connection: int,
        sequences: SequenceServer,
        *,
        node: str,
        match_lease_s: float,
        attached: dict[int, AttachedEngine],
    ) -> None:
        self._hot = hot
        self._connection = connection
        self._sequences = sequences
        self._node = node
        self._match_lease_s = match_lease_s
        self._attached = attached
        self._scope: ModelScope | None = None
        self._slots_asked_at: dict[LeaseId, float] = {}
        """For saves whose slots are not committed yet: when they were asked for."""

    async def answer(self, request: EngineRequest, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(request, Attach):
                await self._attach(request, writer)
                return
            reply: EngineReply = await self._reply(request)
        except LayoutMismatch as error:
            reply = Failure("layout", error.worker)
        except ConfigError as error:
            reply = Failure("config", str(error))
        except ScopeMismatch as error:
            reply = Failure("scope", str(error))
        except OwnershipError as error:
            reply = Failure("lease", str(error))
        except CapacityError as error:
            reply = Failure("capacity", str(error))
        except ValueError as error:
            reply = Failure("request", str(error))
        writer.write(encode(reply))
        await _sent(writer)

    async def _attach(self, request: Attach, writer: asyncio.StreamWriter) -> None:
        pool = await self._hot.attach(request.scope, self._connection)
        self._scope = request.scope
        self._attached[self._connection] = AttachedEngine(request.engine, request.version, request.pid)
        attached = Attached(
            node=self._node,
            connection=self._connection,
            layout=pool.layout,
            n_blocks=pool.n_blocks,
            device=pool.device,
            match_lease_s=self._match_lease_s,
            handle=b"" if pool.descriptor is not None else cuda_handle(pool),
            pool=pool.name,
            version=__version__,
            minor=WIRE_MINOR,
        )
        _log.info(
            "engine attached",
            connection=self._connection,
            engine=request.engine,
            pid=request.pid,
            version=request.version,
            wire=f"{WIRE_VERSION}.{request.minor}",
        )
        if pool.descriptor is None:
            writer.write(encode(attached))
            await _sent(writer)
        else:
            socket_fd = writer.get_extra_info("socket").fileno()
            send_with_descriptor(socket_fd, encode(attached), pool.descriptor)

    async def _reply(self, request: EngineRequest) -> EngineReply:
        match request:
            case Describe():
                return self._describe()
            case Sharing():
                return Shared(self._hot.label_of(_tenant(request.tenant)))
            case Match():
                return await self._match(request)
            case Load():
                return await self._load(request)
            case Open():
                return self._open(request)
            case Allocate():
                return await self._allocate(request)
            case Commit():
                return await self._commit(request)
            case Release():
                return self._release(request)
            case Vouch():
                return Vouched(self._hot.holds(LeaseId(request.lease), connection=request.connection))
            case Prefilled():
                self._hot.note_prefill(request.n_tokens, request.took_s)
                return PrefillNoted()
            case CloseSession():
                self._hot.close_session(_tenant(request.tenant), request.session)
                return SessionClosed()
            case OpenSequence():
                tenant = _tenant(request.tenant)
                return self._sequences.open(tenant, self._own_scope(tenant, request.scope_id))
            case _ if isinstance(request, SEQUENCE_REQUESTS):
                return await self._sequences.reply(request)
            case _:
                raise ProtocolError(f"{type(request).__name__} has no answer here")

    def _describe(self) -> Described:
        stats = self._hot.stats()
        tokens = TokenCounts()
        for of in stats.tenants.values():
            tokens = tokens.plus(of.tokens)
        engines = tuple(self._attached.values())
        return Described(self._node, __version__, stats.layout, stats.pool_blocks, engines, tokens)

    async def _match(self, request: Match) -> Matched:
        began = self._hot.clock.now()
        tenant = _tenant(request.tenant)
        if not 0 <= request.asked_tokens <= PROMPT_TOKENS_MAX:
            raise ValueError(f"asked_tokens: {request.asked_tokens} is not a prompt's length")
        with span("worker.match", parent=request.trace, node=self._node):
            lease, n_peer, n_redis = await self._hot.match(
                connection=self._connection,
                tenant=tenant,
                scope_id=self._own_scope(tenant, request.scope_id),
                hashes=split_hashes(request.hashes),
                asked_tokens=request.asked_tokens,
                hints=request.hints,
            )
        matched = Matched(
            lease=lease.lease_id,
            block_ids=pack_ids(lease.pinned),
            checksums=pack_checksums(self._hot.checksums(lease)),
            n_peer=n_peer,
            n_redis=n_redis,
        )
        self._hot.timings.match.note(self._hot.clock.now() - began)
        return matched

    async def _load(self, request: Load) -> Loaded:
        lease = self._lease(request.lease)
        began = self._hot.clock.now()
        with span("worker.load", parent=request.trace, node=self._node):
            await self._hot.load(lease, deadline_s=_bounded(request.deadline_s))
        self._hot.timings.load.note(self._hot.clock.now() - began)
        return Loaded(
            block_ids=pack_ids(lease.pinned),
            checksums=pack_checksums(self._hot.checksums(lease)),
            sources=pack_sources(lease.sources),
        )

    def _open(self, request: Open) -> Opened:
        tenant = _tenant(request.tenant)
        lease = self._hot.open(
            connection=self._connection,
            tenant=tenant,
            scope_id=self._own_scope(tenant, request.scope_id),
            hashes=split_hashes(request.hashes),
            hints=request.hints,
        )
        return Opened(lease.lease_id)

    async def _allocate(self, request: Allocate) -> Allocated:
        lease = self._lease(request.lease)
        began = self._hot.clock.now()
        grant = await self._hot.allocate(lease, n_blocks_max=request.n_blocks_max, wait_s=_bounded(request.wait_s))
        if grant.block_ids:
            self._slots_asked_at.setdefault(lease.lease_id, began)
        return Allocated(
            first_index=grant.first_index,
            block_ids=pack_ids(grant.block_ids),
            shortfall=grant.shortfall.value,
            gave={str(tenant): n_blocks for tenant, n_blocks in grant.gave.items()},
        )

    async def _commit(self, request: Commit) -> Committed:
        lease = self._lease(request.lease)
        n_blocks = await self._hot.commit(lease, unpack_checksums(request.checksums))
        self._note_save(lease, n_blocks)
        return Committed(n_blocks)

    def _note_save(self, lease: Lease, n_committed: int) -> None:
        asked_at = self._slots_asked_at.get(lease.lease_id)
        if asked_at is not None and n_committed:
            self._hot.timings.save.note(self._hot.clock.now() - asked_at)
        if not lease.filling:
            self._slots_asked_at.pop(lease.lease_id, None)

    def _release(self, request: Release) -> Released:
        lease_id = LeaseId(request.lease)
        self._slots_asked_at.pop(lease_id, None)
        held = self._hot.release(
            lease_id,
            connection=self._connection,
            used_tokens=request.used_tokens,
            own_tokens=request.own_tokens,
        )
        return Released(held)

    def _lease(self, number: int) -> Lease:
        return self._hot.lease(LeaseId(number), connection=self._connection)

    def _own_scope(self, tenant: TenantId, named: bytes) -> bytes:
        """The scope, if it is the tenant's in this engine's model: nobody reads what it may not by naming it."""
        if self._scope is None or named != scope_id(self._scope, label=self._hot.label_of(tenant)):
            raise ScopeMismatch(f"scope: not that of tenant {tenant!r} here; ask for its sharing label again")
        return named


async def _sent(writer: asyncio.StreamWriter) -> None:
    """Wait while the engine takes its replies. Errors: OSError once it has taken none for REPLY_S."""
    if writer.transport.get_write_buffer_size():
        async with asyncio.timeout(REPLY_S):
            await writer.drain()


def _tenant(name: str) -> TenantId:
    return TenantId(check_tenant_name(name))


def _bounded(seconds: float) -> float:
    return max(0.0, min(seconds, WAIT_S_MAX))
