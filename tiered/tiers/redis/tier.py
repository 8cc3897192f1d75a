"""The Redis tier as the movers see it: look up, get and put whole blocks, and never make a request wait for long.

Owns the order of the steps (encode, reserve, write, commit; read, verify, decode, touch) and the breaker. The books
are the ledger's, the bytes on the wire the value client's, what is in them the codec's. Whatever goes wrong with a
value or with the server is a miss or a failed put here; only lookup() raises, because its caller has a next source to
try.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final

from tiered.clock import Clock, SystemClock
from tiered.cluster.connection import connect
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.cluster.replicas import Replicas
from tiered.cluster.servers import topology_of
from tiered.codec.frame import CODEC_NONE, LATER
from tiered.codec.value import Expected, Opened, Value, open_value, value_of
from tiered.config import RedisSettings
from tiered.core.why import Noting
from tiered.errors import IntegrityError, TierError, TierUnavailable
from tiered.layout import KvLayout
from tiered.tiers.redis.answers import REFUSALS, STORED, TOLD, PutAnswer
from tiered.tiers.redis.breaker import Breaker
from tiered.tiers.redis.counting import Asked, Counting, RedisTierCounters
from tiered.tiers.redis.values import Fetched, Received, ValueClient, ValueToRead, ValueToWrite, Written
from tiered.types import NO_HASH, BlockHash, Source, TenantId, Whereabouts

RESERVATION_TTL_S: Final = 30.0
"""Bounds how long a writer that died holds quota. A put of a few hundred MiB takes a second; a slower one only fails
to commit."""

_RESERVATION_TTL_MS: Final = round(RESERVATION_TTL_S * 1000)

_ABSENT: Final = "absent"
_UNAVAILABLE: Final = "unavailable"


@dataclass(frozen=True, slots=True)
class Wanted:
    """out.nbytes is the raw size of a block; out is contiguous."""

    block_hash: BlockHash
    out: memoryview


@dataclass(frozen=True, slots=True)
class ToStore:
    """depth: blocks before this one in its prefix, the last of which is parent. checksum: of payload, None to have it
    computed. codec: the tenant's choice; see tiered.codec.codecs for what becomes of it. copies: 2 to wait a little
    until a replica has it, where there is one."""

    block_hash: BlockHash
    tenant: TenantId
    depth: int
    payload: memoryview
    checksum: bytes | None
    parent: BlockHash = NO_HASH
    codec: str = CODEC_NONE
    copies: int = 1


@dataclass(frozen=True, slots=True)
class _Miss:
    reason: str


class RedisTier:
    """Blocks in Redis, for any number of threads. The constructor does no I/O."""

    def __init__(self, settings: RedisSettings, clock: Clock | None = None, *, why: Noting | None = None) -> None:
        self._clock = clock or SystemClock()
        self._why = why
        self._keys = Keys(settings.namespace, partitions=settings.partitions)
        topology = topology_of(settings)  # one for all: where a master went is learnt once
        self._lookup_timeout_s = settings.lookup_timeout_s
        self._lookup_client = connect(settings, timeout_s=settings.lookup_timeout_s, topology=topology)
        self._control_client = connect(settings, timeout_s=settings.control_timeout_s, topology=topology)
        self._directory = Directory(self._lookup_client, self._keys)
        self._ledger = RedisLedger(self._control_client, self._keys)
        self._replicas = Replicas(self._control_client, self._keys, self._clock, timeout_s=settings.control_timeout_s)
        self._values = ValueClient(settings, topology)
        self._breaker = Breaker(settings.breaker_failures, settings.breaker_open_s)
        self._counting = Counting(self._clock)

    @property
    def lookup_timeout_s(self) -> float:
        """How long a request may wait for a lookup, whatever a server that answers in drops makes of it."""
        return self._lookup_timeout_s

    def lookup(self, hashes: Sequence[BlockHash], *, timed: bool = True) -> list[Whereabouts]:
        """What the shared state knows of each block, in order; one round trip within lookup_timeout_s.

        timed: False for who looks of its own accord, so that what is counted says how long requests wait.

        Errors: TierError, at once while the breaker is open.
        """
        if not self._breaker.allow(self._clock.now()):
            raise TierUnavailable("redis: the breaker is open after repeated failures")
        with self._reported(), self._counting.timed(Asked.LOOKUP) if timed else nullcontext():
            return self._directory.lookup(hashes)

    def get(
        self,
        wanted: Sequence[Wanted],
        *,
        scope_id: bytes,
        tenant: TenantId,
        layout: KvLayout,
        exact_only: bool = False,
        first_depth: int = 0,
        before: Sequence[BlockHash] = (),
        within_s: float = math.inf,
    ) -> list[bytes | None]:
        """Receive blocks into their buffers, decoded; for each the checksum of what lies there, or None for a miss.

        Of a block that was stored by a lossy codec that is not the checksum of the bytes that were put. exact_only:
        such a value is as good as a wrong one. first_depth: of wanted[0]; before: blocks before it in the
        prefix, from its first one on, that are used with it and so are to stay with it. within_s: of receiving them
        all; what has not come by then is a miss.
        wanted is in prefix order. After None the buffer may hold anything. A value that is lost or wrong in any way
        is removed from Redis, but what a later release has written stays for those who can read it; if the server
        fails half-way, the rest are misses. Raises nothing.
        """
        outcomes: list[Opened | _Miss] = [_Miss(_UNAVAILABLE)] * len(wanted)
        if wanted and self._breaker.allow(self._clock.now()):
            # What had arrived when the server failed stays a hit; the rest is counted below as unavailable.
            with suppress(TierError), self._reported():
                expected = Expected(scope_id, layout, exact_only)
                with self._counting.timed(Asked.GET):
                    self._receive(wanted, expected, outcomes, within_s)
                self._settle(wanted, outcomes, tenant, first_depth, before)
        hits = [outcome for outcome in outcomes if isinstance(outcome, Opened)]
        self._counting.note_gets(hits, misses=[outcome.reason for outcome in outcomes if isinstance(outcome, _Miss)])
        return [outcome.checksum if isinstance(outcome, Opened) else None for outcome in outcomes]

    def put(self, blocks: Sequence[ToStore], *, scope_id: bytes, layout: KvLayout) -> list[PutAnswer]:
        """Store blocks as far as the ledger admits them; an answer for each, in order. Raises nothing.

        What counts against the tenant's limit is what its codec leaves of a block.
        """
        answers = [PutAnswer.FAILED] * len(blocks)
        values: list[Value] = []
        if blocks and self._breaker.allow(self._clock.now()):
            # What is not committed when the server fails stays FAILED; its reservations end by themselves.
            with suppress(TierError), self._reported():
                values = [_value(block, scope_id, layout) for block in blocks]
                self._store(blocks, values, answers)
        stored = [value for value, answer in zip(values, answers, strict=False) if answer.stored]
        self._counting.note_puts(answers, stored=stored)
        self._tell_put(blocks, answers)
        return answers

    def counters(self) -> RedisTierCounters:
        return self._counting.counters(self._breaker)

    def close(self) -> None:
        self._values.close()
        self._lookup_client.close()
        self._control_client.close()

    def _receive(
        self, wanted: Sequence[Wanted], expected: Expected, outcomes: list[Opened | _Miss], within_s: float
    ) -> None:
        payloads = [item.out.cast("B") for item in wanted]
        values = [
            ValueToRead(self._keys.of(item.block_hash).block(item.block_hash), payload)
            for item, payload in zip(wanted, payloads, strict=True)
        ]
        for received in self._values.get(values, within_s=within_s):
            index = received.index
            if received.fetched is Fetched.HERE:
                outcomes[index] = _judge(wanted[index].block_hash, expected, received, payloads[index])
            else:
                outcomes[index] = _Miss(_ABSENT if received.fetched is Fetched.ABSENT else "length")

    def _settle(
        self,
        wanted: Sequence[Wanted],
        outcomes: Sequence[Opened | _Miss],
        tenant: TenantId,
        first_depth: int,
        before: Sequence[BlockHash],
    ) -> None:
        """Tell the ledger what was used, and what is no good."""
        self._tell_corrupt(wanted, outcomes, tenant)
        used = [
            item.block_hash for item, outcome in zip(wanted, outcomes, strict=True) if isinstance(outcome, Opened)
        ]
        bad = [
            item.block_hash
            for item, outcome in zip(wanted, outcomes, strict=True)
            if isinstance(outcome, _Miss) and outcome.reason not in (_UNAVAILABLE, LATER)
        ]
        if bad:
            with self._counting.timed(Asked.CONTROL):
                self._ledger.remove(bad)
        if before or used:
            with self._counting.timed(Asked.CONTROL):
                self._ledger.touch([*before, *used], tenant, first_depth=first_depth - len(before))

    def _store(self, blocks: Sequence[ToStore], values: Sequence[Value], answers: list[PutAnswer]) -> None:
        requests = [
            ReserveRequest(block.block_hash, block.tenant, value.n_bytes, block.depth, block.parent)
            for block, value in zip(blocks, values, strict=True)
        ]
        with self._counting.timed(Asked.CONTROL):
            reservations = self._ledger.reserve(requests, ttl_s=RESERVATION_TTL_S)
        mine = [index for index, answer in enumerate(reservations) if answer.reserved]
        for index, answer in enumerate(reservations):
            if not answer.reserved:
                answers[index] = REFUSALS[answer]
        outcomes = self._write([blocks[index] for index in mine], [values[index] for index in mine])
        written, refused = [], []
        for index, outcome in zip(mine, outcomes, strict=True):
            if outcome is Written.NO_MEMORY:
                answers[index] = PutAnswer.REFUSED_FULL
                refused.append(index)
            elif outcome is not Written.UNKNOWN:
                written.append(index)
        # Deepest first: what is committed later is newer, and the tail of a prefix leaves before its head.
        written.sort(key=lambda index: -blocks[index].depth)
        if refused:
            with self._counting.timed(Asked.CONTROL):
                self._ledger.abort([(blocks[index].block_hash, blocks[index].tenant) for index in refused])
        committed: Sequence[bool] = ()
        if written:
            with self._counting.timed(Asked.CONTROL):
                committed = self._ledger.commit(
                    [(blocks[i].block_hash, blocks[i].tenant, values[i].n_bytes) for i in written]
                )
        for index, is_there in zip(written, committed, strict=True):
            if is_there:
                answers[index] = STORED[reservations[index]]
        self._replicate([blocks[i] for i, there in zip(written, committed, strict=True) if there])

    def _write(self, blocks: Sequence[ToStore], values: Sequence[Value]) -> list[Written]:
        if not blocks:
            return []
        to_write = [
            ValueToWrite(self._keys.of(block.block_hash).block(block.block_hash), value.header, value.stored)
            for block, value in zip(blocks, values, strict=True)
        ]
        with self._counting.timed(Asked.PUT):
            return self._values.put(to_write, ttl_ms=_RESERVATION_TTL_MS)

    def _replicate(self, stored: Sequence[ToStore]) -> None:
        """Wait a little for a replica to have what is to be in two places."""
        hashes = [block.block_hash for block in stored if block.copies > 1]
        if not hashes:
            return
        outcome = "no replica"
        if self._replicas.fewest() > 0:
            outcome = "yes" if self._replicas.have(hashes) else "late"
        self._counting.note_replicated(outcome, len(hashes))

    def _tell_corrupt(self, wanted: Sequence[Wanted], outcomes: Sequence[Opened | _Miss], tenant: TenantId) -> None:
        if self._why is None:
            return
        for item, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, _Miss) and outcome.reason not in (_ABSENT, _UNAVAILABLE, LATER):
                self._why.note("corrupt", item.block_hash, tenant, tier=Source.REDIS.value, why=outcome.reason)

    def _tell_put(self, blocks: Sequence[ToStore], answers: Sequence[PutAnswer]) -> None:
        if self._why is None:
            return
        for block, answer in zip(blocks, answers, strict=True):
            what, how = TOLD[answer]
            self._why.note(what, block.block_hash, block.tenant, tier=Source.REDIS.value, why=how, depth=block.depth)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report to the breaker how an allowed call went; a bug counts as a failure, so that no probe stays open."""
        try:
            yield
        except BaseException:
            self._breaker.failed(self._clock.now())
            raise
        self._breaker.succeeded()


def _value(block: ToStore, scope_id: bytes, layout: KvLayout) -> Value:
    return value_of(
        block.payload.cast("B"),
        block_hash=block.block_hash,
        scope_id=scope_id,
        layout=layout,
        codec=block.codec,
        checksum=block.checksum,
    )


def _judge(block_hash: BlockHash, expected: Expected, received: Received, place: memoryview) -> Opened | _Miss:
    try:
        return open_value(received.header, place, n_bytes=received.n_bytes, block_hash=block_hash, expected=expected)
    except IntegrityError as error:
        return _Miss(error.reason)
