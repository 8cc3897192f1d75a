"""The Redis tier as the movers see it: look up, get and put whole blocks, and never make a request wait for long.

Owns the order of the steps (reserve, write, commit; read, verify, touch), the breaker and the counters. The books
are the ledger's, the bytes on the wire the value client's. Whatever goes wrong with a value or with the server is a
miss or a failed put here; only lookup() raises, because its caller has a next source to try.
"""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from tiered.clock import Clock, SystemClock
from tiered.cluster.connection import connect
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveAnswer, ReserveRequest
from tiered.codec.frame import (
    CODEC_NONE,
    HEADER_BYTES,
    BlockHeader,
    checksum_of,
    decode_header,
    encode_header,
    verify,
)
from tiered.config import RedisSettings
from tiered.errors import IntegrityError, TierError, TierUnavailable
from tiered.tiers.redis.breaker import Breaker
from tiered.tiers.redis.values import Fetched, ValueClient, ValueToRead, ValueToWrite, Written
from tiered.types import BlockHash, TenantId, Whereabouts

RESERVATION_TTL_S: Final = 30.0
"""Bounds how long a writer that died holds quota. A put of a few hundred MiB takes a second; a slower one only fails
to commit."""

_RESERVATION_TTL_MS: Final = round(RESERVATION_TTL_S * 1000)

_UNAVAILABLE: Final = "unavailable"


@dataclass(frozen=True, slots=True)
class Wanted:
    """out.nbytes is the raw size of a block; out is contiguous."""

    block_hash: BlockHash
    out: memoryview


@dataclass(frozen=True, slots=True)
class ToStore:
    """depth: blocks before this one in its prefix. checksum: of payload, None to have it computed."""

    block_hash: BlockHash
    tenant: TenantId
    depth: int
    payload: memoryview
    checksum: bytes | None


class PutAnswer(enum.Enum):
    STORED = "stored"
    STORED_AFTER_EVICTING_OWN = "stored_after_evicting_own"
    ALREADY_THERE = "already_there"
    """Or another writer is storing the same block right now."""
    REFUSED_QUOTA = "refused_quota"
    REFUSED_FULL = "refused_full"
    FAILED = "failed"
    """Redis did not answer, or the reservation ended before the bytes were there."""


@dataclass(frozen=True, slots=True)
class RedisTierCounters:
    """Blocks, except where the name says bytes. Misses are by reason: absent, unavailable, or what was wrong with
    the value (length, magic, version, header, hash, scope, codec, checksum)."""

    hits: int
    misses: Mapping[str, int]
    puts: Mapping[PutAnswer, int]
    bytes_read: int
    bytes_written: int
    breaker_open: bool
    breaker_opened_total: int


_REFUSALS: Final[Mapping[ReserveAnswer, PutAnswer]] = {
    ReserveAnswer.ALREADY_THERE: PutAnswer.ALREADY_THERE,
    ReserveAnswer.PENDING_ELSEWHERE: PutAnswer.ALREADY_THERE,
    ReserveAnswer.REFUSED_QUOTA: PutAnswer.REFUSED_QUOTA,
    ReserveAnswer.REFUSED_FULL: PutAnswer.REFUSED_FULL,
}
_STORED: Final[Mapping[ReserveAnswer, PutAnswer]] = {
    ReserveAnswer.RESERVED: PutAnswer.STORED,
    ReserveAnswer.RESERVED_AFTER_EVICTING_OWN: PutAnswer.STORED_AFTER_EVICTING_OWN,
}


@dataclass(frozen=True, slots=True)
class _Hit:
    checksum: bytes


@dataclass(frozen=True, slots=True)
class _Miss:
    reason: str


class RedisTier:
    """Blocks in Redis, for any number of threads. The constructor does no I/O."""

    def __init__(self, settings: RedisSettings, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._keys = Keys(namespace=settings.namespace)
        self._lookup_client = connect(settings, timeout_s=settings.lookup_timeout_s)
        self._control_client = connect(settings, timeout_s=settings.control_timeout_s)
        self._directory = Directory(self._lookup_client, self._keys)
        self._ledger = RedisLedger(self._control_client, self._keys)
        self._values = ValueClient(settings)
        self._breaker = Breaker(settings.breaker_failures, settings.breaker_open_s)
        self._lock = threading.Lock()
        self._misses: Counter[str] = Counter()
        self._puts: Counter[PutAnswer] = Counter()
        self._hits = 0
        self._bytes_read = 0
        self._bytes_written = 0

    def lookup(self, hashes: Sequence[BlockHash]) -> list[Whereabouts]:
        """What the shared state knows of each block, in order; one round trip within lookup_timeout_s.

        Errors: TierError, at once while the breaker is open.
        """
        if not self._breaker.allow(self._clock.now()):
            raise TierUnavailable("redis: the breaker is open after repeated failures")
        with self._reported():
            return self._directory.lookup(hashes)

    def get(self, wanted: Sequence[Wanted], *, scope_id: bytes, tenant: TenantId) -> list[bytes | None]:
        """Receive blocks into their buffers; for each its verified checksum, or None for a miss.

        wanted is in prefix order. After None the buffer may hold anything. A value that is lost or wrong in any way
        is removed from Redis; if the server fails half-way, the rest are misses. Raises nothing.
        """
        outcomes: list[_Hit | _Miss] = [_Miss(_UNAVAILABLE)] * len(wanted)
        if wanted and self._breaker.allow(self._clock.now()):
            # What had arrived when the server failed stays a hit; the rest is counted below as unavailable.
            with suppress(TierError), self._reported():
                self._receive(wanted, scope_id, outcomes)
                self._settle(wanted, outcomes, tenant)
        with self._lock:
            for item, outcome in zip(wanted, outcomes, strict=True):
                if isinstance(outcome, _Hit):
                    self._hits += 1
                    self._bytes_read += item.out.nbytes
                else:
                    self._misses[outcome.reason] += 1
        return [outcome.checksum if isinstance(outcome, _Hit) else None for outcome in outcomes]

    def put(self, blocks: Sequence[ToStore], *, scope_id: bytes) -> list[PutAnswer]:
        """Store blocks as far as the ledger admits them; an answer for each, in order. Raises nothing."""
        answers = [PutAnswer.FAILED] * len(blocks)
        if blocks and self._breaker.allow(self._clock.now()):
            # What is not committed when the server fails stays FAILED; its reservations end by themselves.
            with suppress(TierError), self._reported():
                self._store(blocks, scope_id, answers)
        stored = _STORED.values()
        with self._lock:
            self._puts.update(answers)
            self._bytes_written += sum(
                block.payload.nbytes for block, answer in zip(blocks, answers, strict=True) if answer in stored
            )
        return answers

    def counters(self) -> RedisTierCounters:
        with self._lock:
            return RedisTierCounters(
                hits=self._hits,
                misses=dict(self._misses),
                puts=dict(self._puts),
                bytes_read=self._bytes_read,
                bytes_written=self._bytes_written,
                breaker_open=self._breaker.is_open,
                breaker_opened_total=self._breaker.opened_total,
            )

    def close(self) -> None:
        self._values.close()
        self._lookup_client.close()
        self._control_client.close()

    def _receive(self, wanted: Sequence[Wanted], scope_id: bytes, outcomes: list[_Hit | _Miss]) -> None:
        payloads = [item.out.cast("B") for item in wanted]
        values = [
            ValueToRead(self._keys.block(item.block_hash), payload)
            for item, payload in zip(wanted, payloads, strict=True)
        ]
        for index, (fetched, header) in enumerate(self._values.get(values)):
            if fetched is Fetched.HERE:
                outcomes[index] = _judge(wanted[index].block_hash, scope_id, header, payloads[index])
            else:
                outcomes[index] = _Miss("absent" if fetched is Fetched.ABSENT else "length")

    def _settle(self, wanted: Sequence[Wanted], outcomes: Sequence[_Hit | _Miss], tenant: TenantId) -> None:
        """Tell the ledger what was used, and what is no good."""
        used = [item.block_hash for item, outcome in zip(wanted, outcomes, strict=True) if isinstance(outcome, _Hit)]
        bad = [item.block_hash for item, outcome in zip(wanted, outcomes, strict=True) if isinstance(outcome, _Miss)]
        self._ledger.remove(bad)
        self._ledger.touch(used, tenant)

    def _store(self, blocks: Sequence[ToStore], scope_id: bytes, answers: list[PutAnswer]) -> None:
        requests = [
            ReserveRequest(block.block_hash, block.tenant, HEADER_BYTES + block.payload.nbytes, block.depth)
            for block in blocks
        ]
        reservations = self._ledger.reserve(requests, ttl_s=RESERVATION_TTL_S)
        mine = [index for index, answer in enumerate(reservations) if answer.reserved]
        for index, answer in enumerate(reservations):
            if not answer.reserved:
                answers[index] = _REFUSALS[answer]
        written, refused = [], []
        values = [self._value(blocks[index], scope_id) for index in mine]
        for index, outcome in zip(mine, self._values.put(values, ttl_ms=_RESERVATION_TTL_MS), strict=True):
            if outcome is Written.NO_MEMORY:
                answers[index] = PutAnswer.REFUSED_FULL
                refused.append(index)
            else:
                written.append(index)
        # Deepest first: what is committed later is newer, and the tail of a prefix leaves before its head.
        written.sort(key=lambda index: -blocks[index].depth)
        self._ledger.abort([(blocks[index].block_hash, blocks[index].tenant) for index in refused])
        committed = self._ledger.commit([(blocks[index].block_hash, blocks[index].tenant) for index in written])
        for index, is_there in zip(written, committed, strict=True):
            if is_there:
                answers[index] = _STORED[reservations[index]]

    def _value(self, block: ToStore, scope_id: bytes) -> ValueToWrite:
        payload = block.payload.cast("B")
        header = BlockHeader(
            block_hash=block.block_hash,
            scope_id=scope_id,
            codec=CODEC_NONE,
            raw_bytes=payload.nbytes,
            stored_bytes=payload.nbytes,
            checksum=checksum_of(payload) if block.checksum is None else block.checksum,
        )
        return ValueToWrite(self._keys.block(block.block_hash), encode_header(header), payload)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report to the breaker how an allowed call went; a bug counts as a failure, so that no probe stays open."""
        try:
            yield
        except BaseException:
            self._breaker.failed(self._clock.now())
            raise
        self._breaker.succeeded()


def _judge(block_hash: BlockHash, scope_id: bytes, packed: memoryview, payload: memoryview) -> _Hit | _Miss:
    try:
        header = decode_header(packed)
        verify(header, block_hash=block_hash, scope_id=scope_id, raw_bytes=payload.nbytes, payload=payload)
    except IntegrityError as error:
        return _Miss(error.reason)
    return _Hit(header.checksum)
