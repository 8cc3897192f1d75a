"""Sequences that a client drives over the socket: it sends tokens with their keys and values, and queries; it gets
attention's outputs back.

Owns the order of decisions and bytes for one connection: decide on the loop, compute in a thread over blocks that the
sequence has pinned, decide again. A connection's requests come one after the other, so nothing of its sequences
changes meanwhile. What a lost connection held comes back once no thread works on it any more.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import Callable
from typing import Any, Final, TypeVar, get_args

from tiered.core.sequences import (
    copied,
    drop,
    drop_sequences,
    find_sequence,
    fork,
    open_sequence,
    truncate,
    written,
)
from tiered.errors import CapacityError, OwnershipError
from tiered.pool.pool import BlockPool
from tiered.sequence.sequence import TokenSequence
from tiered.types import SequenceId, TenantId
from tiered.wire.messages import (
    Append,
    Appended,
    Attend,
    Attention,
    DropSequence,
    Fork,
    OpenSequence,
    Reuse,
    SequenceChanged,
    SequenceOpened,
    SequenceReply,
    SequenceRequest,
    Truncate,
)
from worker.hot_tier import HotTier
from worker.sequence_compute import Query, Writing, attend, write_tokens

SEQUENCES_MAX: Final = 1_024
"""Of one connection: even an empty one costs the worker memory."""

TABLE_ENTRIES_MAX: Final = 1 << 22
"""Of one batch's block table, padded to its longest sequence: 32 MiB of int64."""

COMPUTING_MAX: Final = 2
"""Threads that compute for clients at once, over all connections: each may use every core while it does."""

APPEND_WAIT_S: Final = 0.25
"""How long an append waits for room to be made with copies below; then blocks leave without."""

SEQUENCE_REQUESTS: Final = get_args(SequenceRequest)

T = TypeVar("T")


class SequenceServer:
    """The sequences of one connection. ``computing``: shared by all connections of the worker."""

    def __init__(self, hot: HotTier, connection: int, computing: asyncio.Semaphore) -> None:
        self._hot = hot
        self._connection = connection
        self._computing = computing
        self._work: asyncio.Future[Any] | None = None
        self._n_open = 0

    def open(self, tenant: TenantId, scope_id: bytes) -> SequenceOpened:
        self._require_a_place()
        self._pool().layout.require_open()
        sequence = open_sequence(self._hot.core, connection=self._connection, tenant=tenant, scope_id=scope_id)
        self._n_open += 1
        return SequenceOpened(sequence.sequence_id)

    async def reply(self, request: SequenceRequest) -> SequenceReply:
        """Errors: OwnershipError, CapacityError, ValueError; the sequences are then as they were."""
        match request:
            case Reuse():
                return await self._reuse(self._find(request.sequence), _tokens(request.tokens))
            case Append():
                return await self._append(self._find(request.sequence), _tokens(request.tokens), request.keys_values)
            case Attend():
                return await self._attend(request)
            case Fork():
                sequence = self._find(request.sequence)
                self._require_a_place()
                twin = fork(self._hot.core, sequence)
                self._n_open += 1
                return SequenceOpened(twin.sequence_id)
            case Truncate():
                truncate(self._hot.core, self._find(request.sequence), request.n_tokens)
            case DropSequence():
                drop(self._hot.core, self._find(request.sequence))
                self._n_open -= 1
            case OpenSequence():
                raise AssertionError("open() answers this one, with a scope that was checked")
        self._hot.turn()
        return SequenceChanged()

    def close(self) -> None:
        """The connection is gone. Its sequences end now, or when the thread that works on them is done."""
        if self._work is None or self._work.done():
            self._drop_all()
        else:
            self._work.add_done_callback(self._work_is_over)

    async def _reuse(self, sequence: TokenSequence, tokens: array[int]) -> Appended:
        n_before, size = len(sequence), sequence.block_tokens
        extension = sequence.extension(tokens)
        hashes = [*sequence.hashes, *extension.hashes]
        n_cached = len(self._hot.core.index.match(hashes)) * size - n_before
        if n_cached <= 0:
            return Appended(n_before, 0)
        await self._hot.grow(sequence, sequence.extension(tokens[:n_cached]), wait_s=0.0)
        return Appended(len(sequence), n_cached)

    async def _append(self, sequence: TokenSequence, tokens: array[int], keys_values: bytes) -> Appended:
        pool, n_before = self._pool(), len(sequence)
        if len(keys_values) != len(tokens) * pool.layout.token_bytes:
            raise ValueError(
                f"keys_values: {len(keys_values)} bytes, not the {len(tokens) * pool.layout.token_bytes} of "
                f"{len(tokens)} tokens in the worker's layout ({pool.layout.describe()})"
            )
        appended = await self._hot.grow(sequence, sequence.extension(tokens), wait_s=APPEND_WAIT_S)
        writing = Writing(
            copy=appended.copy,
            slots=sequence.slots(appended.first_token, appended.end_token),
            keys_values=keys_values,
            n_tokens=len(tokens),
            whole=sequence.completed_by(appended.n_to_write),
        )
        core = self._hot.core
        try:
            checksums = await self._in_thread(lambda: write_tokens(pool, writing))
        except Exception:
            truncate(core, sequence, n_before)
            raise
        if appended.copy is not None:
            copied(core, sequence)
        n_shared = written(core, sequence, appended.n_to_write, checksums)
        self._hot.turn()
        if n_shared:
            await self._hot.durable()
        return Appended(len(sequence), appended.first_token - n_before)

    async def _attend(self, request: Attend) -> Attention:
        pool = self._pool()
        if len(request.sequences) != len(request.query_lens):
            raise ValueError(f"query_lens: {len(request.query_lens)} for {len(request.sequences)} sequences")
        if len(request.sequences) > SEQUENCES_MAX:
            raise ValueError(f"sequences: {len(request.sequences)} in one batch are more than {SEQUENCES_MAX}")
        asked: list[tuple[TokenSequence, int]] = []
        for sequence_id, n_queries in zip(request.sequences, request.query_lens, strict=True):
            sequence = self._find(sequence_id)
            if not 0 <= n_queries <= len(sequence):
                raise ValueError(
                    f"query_lens: {n_queries} queries for sequence {sequence_id} of {len(sequence)} tokens"
                )
            if n_queries:
                asked.append((sequence, n_queries))
        n_entries = len(asked) * max((len(sequence.block_ids) for sequence, _ in asked), default=0)
        if n_entries > TABLE_ENTRIES_MAX:
            raise ValueError(
                f"sequences: a block table of {n_entries} entries is more than {TABLE_ENTRIES_MAX}: send fewer"
            )
        query = Query(
            block_tables=[tuple(sequence.block_ids) for sequence, _ in asked],
            seq_lens=[len(sequence) for sequence, _ in asked],
            query_lens=[n_queries for _, n_queries in asked],
            layer=request.layer,
            n_heads=request.n_heads,
            queries=request.queries,
            scale=request.scale,
            latent_dim=request.latent_dim,
        )
        return Attention(await self._in_thread(lambda: attend(pool, query)))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run it, and remember it while it runs: a stop may cancel us, but not the thread."""
        async with self._computing:
            running = asyncio.ensure_future(asyncio.to_thread(work))
            self._work = running
            return await asyncio.shield(running)

    def _find(self, sequence: int) -> TokenSequence:
        return find_sequence(self._hot.core, SequenceId(sequence), connection=self._connection)

    def _pool(self) -> BlockPool:
        pool = self._hot.pool
        if pool is None:
            raise OwnershipError("no engine has attached yet, so there is no pool")
        return pool

    def _require_a_place(self) -> None:
        if self._n_open >= SEQUENCES_MAX:
            raise CapacityError(f"this connection holds {SEQUENCES_MAX} sequences already; drop some of them")

    def _work_is_over(self, work: asyncio.Future[Any]) -> None:
        if not work.cancelled():
            work.exception()  # nobody is left to be told
        self._drop_all()

    def _drop_all(self) -> None:
        if self._hot.pool is not None and drop_sequences(self._hot.core, self._connection):
            self._hot.turn()


def _tokens(packed: bytes) -> array[int]:
    """ValueError when the length is no multiple of 4."""
    if len(packed) % 4:
        raise ValueError(f"tokens: {len(packed)} bytes are not a whole number of little-endian u32")
    tokens = array("I", packed)
    if sys.byteorder == "big":  # pragma: no cover
        tokens.byteswap()
    return tokens
