"""Sequences over a hot tier in this process: what an engine holds of a request, thread-safe.

Owns the order of locks: a sequence's own, then the host's. Hashing, copies of open blocks and checksums of whole ones
happen under the sequence's lock alone, so that the one all share is held for bookkeeping only.

Use, for one request::

    with client.open_sequence(tenant=tenant) as sequence:
        appended = sequence.append(prompt)
        slots = sequence.slots(appended.first_token, appended.end_token)
        ... compute tokens from appended.first_token on, write their keys and values into slots, in every layer ...
        sequence.written()
        ... attend over sequence.block_table ...
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from tiered.client.saving import block_checksum
from tiered.core.allocate import Shortfall
from tiered.core.core import CacheCore
from tiered.core.pump import Seam, grow, pump
from tiered.core.sequences import copied, drop, fork, open_sequence, out_of_blocks, share, truncate, written
from tiered.hashing.chain import Extras
from tiered.pool.pool import BlockPool
from tiered.sequence.sequence import Appended, TokenSequence
from tiered.types import BlockId, TenantId


@dataclass(frozen=True, slots=True)
class SequenceHost:
    """The core that sequences live in. ``changed`` is the lock of its one caller, notified when movers finish.

    forgotten: sequences to drop with the next call. The garbage collector finds them in the middle of anything, where
    nothing may be locked.
    """

    core: CacheCore
    pool: BlockPool
    seam: Seam
    changed: threading.Condition
    connection: int
    forgotten: deque[SequenceHandle] = field(default_factory=deque)

    def open(
        self, *, tenant: TenantId, scope_id: bytes, extras: Extras | None = None, is_private: bool = False
    ) -> SequenceHandle:
        """Errors: ValueError where an engine packs the blocks its own way."""
        self.pool.layout.require_open()
        self.drop_forgotten()
        with self.changed:
            state = open_sequence(
                self.core,
                connection=self.connection,
                tenant=tenant,
                scope_id=scope_id,
                extras=extras,
                is_private=is_private,
            )
        return SequenceHandle(self, state)

    def drop_forgotten(self) -> None:
        while True:
            try:
                handle = self.forgotten.popleft()
            except IndexError:
                return
            with handle:
                pass


class SequenceHandle:
    """One sequence. Every method may be called from any thread; OwnershipError once it was dropped."""

    def __init__(self, host: SequenceHost, state: TokenSequence) -> None:
        self._host = host
        self._state = state
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Tokens appended, written or not."""
        return len(self._state)

    def __enter__(self) -> SequenceHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop it, unless that was done."""
        with self._lock, self._host.changed:
            if self._state.sequence_id in self._host.core.sequences:
                drop(self._host.core, self._state)
                pump(self._host.core, self._host.seam)

    @property
    def tenant(self) -> TenantId:
        return self._state.tenant

    @property
    def tokens(self) -> list[int]:
        with self._lock:
            return self._state.tokens.tolist()

    @property
    def n_written(self) -> int:
        """Tokens whose keys and values are in place."""
        return self._state.n_written

    @property
    def gave(self) -> dict[TenantId, int]:
        """How many blocks of whom have left for it."""
        return dict(self._state.gave)

    @property
    def n_ready(self) -> int:
        """Its first so many blocks are shared with whoever has the same tokens."""
        return self._state.n_ready

    @property
    def block_table(self) -> tuple[BlockId, ...]:
        """The blocks that its tokens lie in, in order. Others may read them too."""
        with self._lock:
            return tuple(self._state.block_ids)

    def slots(self, first_token: int, end_token: int) -> list[int]:
        """Where these tokens' keys and values go: ``block_id * block_tokens + offset`` each, as for ``write_kv``.

        Errors: ValueError for tokens that it does not have.
        """
        with self._lock:
            if not 0 <= first_token <= end_token <= len(self._state):
                raise ValueError(f"tokens [{first_token}, {end_token}) are not among the {len(self._state)} here")
            return self._state.slots(first_token, end_token)

    def append(self, tokens: Sequence[int], *, wait_s: float = 0.25) -> Appended:
        """Go on with ``tokens``: what of it is cached is shared, the rest gets slots, an open block its own copy.

        Waits for room at most ``wait_s``; after that blocks leave without a copy below.
        Errors: OutOfBlocks, a CapacityError, when all of the room is in use; ValueError for what is no token, and
                while tokens of an earlier append are not written. The sequence is then as it was.
        """
        host = self._host
        host.drop_forgotten()
        with self._lock:
            before = len(self._state)
            extension = self._state.extension(tokens)
            ends_at = time.monotonic() + wait_s
            with host.changed:
                while True:
                    left = ends_at - time.monotonic()
                    appended = grow(host.core, host.seam, self._state, extension, force=left <= 0)
                    if appended is not None:
                        break
                    if left <= 0:
                        n_blocks = -(-len(tokens) // self._state.block_tokens)
                        raise out_of_blocks(host.core, self._state, n_blocks, Shortfall.SOON)
                    host.changed.wait(left)
                    pump(host.core, host.seam)
            if appended.copy is not None:
                self._copy(appended, before)
            return appended

    def written(self, n_tokens: int | None = None) -> int:
        """The next ``n_tokens``, or all that are left, are in place in every layer; returns how many blocks are
        shared by it. Work that writes them on a device has ended, or is ordered before whatever reads the pool.

        Errors: ValueError for more than were appended.
        """
        host = self._host
        with self._lock:
            n = self._state.n_unwritten if n_tokens is None else n_tokens
            whole = self._state.completed_by(n) if 0 <= n <= self._state.n_unwritten else []
            checksums = [block_checksum(host.pool, block_id) for block_id in whole]
            with host.changed:
                n_ready = written(host.core, self._state, n, checksums)
                pump(host.core, host.seam)
            return n_ready

    def share(self, n_tokens: int) -> int:
        """Of a private sequence: let others find the full blocks of the first ``n_tokens``; how many are new to them.

        Errors: ValueError for more than are written.
        """
        host = self._host
        with self._lock:
            host.pool.settle()
            with host.changed:
                n_ready = share(host.core, self._state, n_tokens)
                pump(host.core, host.seam)
            return n_ready

    def forget(self) -> None:
        """Drop it some time, from wherever: takes no lock, so it may be called by the garbage collector."""
        self._host.forgotten.append(self)

    def fork(self) -> SequenceHandle:
        """A second sequence over the same blocks; a block is copied only when one of them writes into it.

        Errors: ValueError while tokens are not written.
        """
        with self._lock, self._host.changed:
            return SequenceHandle(self._host, fork(self._host.core, self._state))

    def truncate(self, n_tokens: int) -> None:
        """Keep the first ``n_tokens``; blocks behind them that are whole stay cached.

        Errors: ValueError for less than 0 or more than there are.
        """
        with self._lock, self._host.changed:
            truncate(self._host.core, self._state, n_tokens)
            pump(self._host.core, self._host.seam)

    def drop(self) -> None:
        """Give everything back; what is whole stays cached. Errors: OwnershipError the second time."""
        with self._lock, self._host.changed:
            drop(self._host.core, self._state)
            pump(self._host.core, self._host.seam)

    def _copy(self, appended: Appended, before: int) -> None:
        """Make the copy with nothing but this sequence locked: both of its blocks are pinned."""
        host, copy = self._host, appended.copy
        assert copy is not None
        try:
            host.pool.copy_tokens(copy.source, copy.target, copy.n_tokens)
        except BaseException:
            with host.changed:
                truncate(host.core, self._state, before)
            raise
        with host.changed:
            copied(host.core, self._state)
