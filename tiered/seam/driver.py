"""The transfer threads: they run jobs against pool and tiers with blocking calls and report completions.

Three lanes. *Fetchers* fill slots from peers and Redis, each job within FETCH_S. One *copier* moves leaving blocks
into staging buffers, which takes microseconds and never touches the network. One *writer* puts the staged copies into
Redis.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Protocol

from tiered.codec.frame import checksum_of
from tiered.core.why import Noting
from tiered.jobs import CopyDone, DemoteJob, FetchDone, FetchJob, PeerAddress
from tiered.log import get_logger
from tiered.metrics.timing import Timing
from tiered.pool.pool import BlockPool
from tiered.pool.staging import StagingBuffers
from tiered.seam.handoff import Handoff
from tiered.tiers.redis.tier import RedisTier, ToStore, Wanted
from tiered.tracing import span
from tiered.types import BlockHash, Source

FETCHERS: Final = 8
"""More than the processor can use: most of them are there to wait for what is slow. FetchLimits say how many one
origin may hold, so that of these two are left for Redis when peers are stuck, and five for peers when Redis is."""

FETCH_S: Final = 5.0
"""Of one job in all, however many steps it takes and however well each of them keeps its own deadline."""

WRITE_BATCH_BLOCKS: Final = 8
"""Staged blocks that share the three round trips of one put."""

STAGING_WAIT_S: Final = 0.25
"""How long the copier waits for a slow Redis to give a buffer back before it drops a copy. Nobody waits for the
copier: whoever needs room lets other blocks leave without a copy."""

_log = get_logger("tiered.seam")


class PeerSource(Protocol):
    """What the driver needs of other workers."""

    def fetch(
        self,
        peer: PeerAddress,
        hashes: Sequence[BlockHash],
        outs: Sequence[memoryview],
        *,
        scope_id: bytes,
        within_s: float,
    ) -> list[bytes | None]:
        """Per block its verified checksum, or None. Never raises for a peer that fails."""


@dataclass(slots=True)
class DriverCounters:
    """Plain totals; each is written by one lane only."""

    copies_dropped: int = 0
    torn_copies: int = 0
    demoted: Timing = field(default_factory=Timing)
    """From when a copy was handed over until Redis has it; of those that were stored."""

    def copy(self) -> DriverCounters:
        return DriverCounters(self.copies_dropped, self.torn_copies, self.demoted.copy())


@dataclass(frozen=True, slots=True)
class _Staged:
    job: DemoteJob
    buffer: memoryview
    since: float


class Driver:
    """Runs the lanes of one pool. ``redis`` or ``peers`` may be None: that origin then has nothing."""

    def __init__(
        self,
        pool: BlockPool,
        handoff: Handoff,
        *,
        redis: RedisTier | None,
        peers: PeerSource | None,
        n_fetchers: int = FETCHERS,
        fetch_s: float = FETCH_S,
        staging_blocks: int = 32,
        why: Noting | None = None,
    ) -> None:
        self.counters = DriverCounters()
        self._why = why
        self._pool = pool
        self._handoff = handoff
        self._redis = redis
        self._peers = peers
        self._staging = StagingBuffers(staging_blocks, pool.layout.block_bytes, pinned=pool.device != "cpu")
        self._staged: queue.SimpleQueue[_Staged | None] = queue.SimpleQueue()
        self._fetch_s = fetch_s
        self._threads = [
            *(threading.Thread(target=self._fetch_lane, name=f"fetch-{i}") for i in range(n_fetchers)),
            threading.Thread(target=self._copy_lane, name="copy"),
            threading.Thread(target=self._write_lane, name="write"),
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def close(self, *, timeout_s: float) -> None:
        """Stop the lanes. What is staged is still written, within ``timeout_s`` in all."""
        for job in self._handoff.stop():
            if isinstance(job, FetchJob):
                self._handoff.finish(FetchDone(job.ticket, (None,) * len(job.hashes)))
            else:
                self._handoff.finish(CopyDone(job.ticket, copied=False))
        ends_at = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, ends_at - time.monotonic()))

    def written(self, *, timeout_s: float) -> bool:
        """Until nothing that was copied waits for Redis any more; False if that takes longer."""
        return self._staging.wait_idle(timeout_s=timeout_s)

    # Up: from a peer or Redis into slots.

    def _fetch_lane(self) -> None:
        while (job := self._handoff.take_fetch()) is not None:
            began = time.monotonic()
            checksums: list[bytes | None] = [None] * len(job.hashes)
            try:
                peer, n_blocks = job.origin.peer, len(job.hashes)
                source = "redis" if peer is None else peer.node
                with span("worker.fetch", parent=job.trace, source=source, n_blocks=n_blocks) as traced:
                    checksums = self._fetch(job)
                    traced.say(n_good=sum(checksum is not None for checksum in checksums))
            except Exception:
                # A defect must not leave an engine waiting for a completion that never comes.
                _log.exception("fetch failed", origin=job.origin.source, n_blocks=len(job.hashes))
            finally:
                took_s = time.monotonic() - began
                self._handoff.finish(FetchDone(job.ticket, tuple(checksums), took_s))

    def _fetch(self, job: FetchJob) -> list[bytes | None]:
        with ExitStack() as stack:
            outs = [stack.enter_context(self._pool.write(block_id)) for block_id in job.block_ids]
            if job.origin.peer is not None:
                if self._peers is None:
                    return [None] * len(outs)
                return self._peers.fetch(
                    job.origin.peer, job.hashes, outs, scope_id=job.scope_id, within_s=self._fetch_s
                )
            if self._redis is None:
                return [None] * len(outs)
            wanted = [Wanted(block_hash=h, out=out) for h, out in zip(job.hashes, outs, strict=True)]
            return self._redis.get(
                wanted,
                scope_id=job.scope_id,
                tenant=job.tenant,
                layout=self._pool.layout,
                exact_only=job.exact_only,
                first_depth=job.first_depth,
                before=job.before,
                within_s=self._fetch_s,
            )

    # Down: from the pool into staging, from staging into Redis.

    def _copy_lane(self) -> None:
        while (job := self._handoff.take_copy()) is not None:
            copied = False
            try:
                copied = self._copy(job)
            except Exception:
                _log.exception("copy failed", block_id=job.block_id)
            finally:
                self._handoff.finish(CopyDone(job.ticket, copied=copied))
        self._staged.put(None)

    def _copy(self, job: DemoteJob) -> bool:
        since = self._handoff.since(job.ticket)
        buffer = self._staging.lend(timeout_s=STAGING_WAIT_S) if self._redis is not None else None
        if buffer is None:
            self.counters.copies_dropped += 1
            return False
        self._pool.read(job.block_id, buffer)
        self._staged.put(_Staged(job, buffer, since))
        return True

    def _write_lane(self) -> None:
        ended = False
        while not ended:
            batch: list[_Staged] = []
            item = self._staged.get()
            while item is not None:
                batch.append(item)
                if len(batch) == WRITE_BATCH_BLOCKS:
                    break
                try:
                    item = self._staged.get_nowait()
                except queue.Empty:
                    break
            ended = item is None
            try:
                self._write(batch)
            except Exception:
                _log.exception("write failed", n_blocks=len(batch))
            finally:
                for staged in batch:
                    self._staging.give_back(staged.buffer)

    def _write(self, batch: Sequence[_Staged]) -> None:
        """Put staged blocks, scope by scope; a copy that is not what was committed is not stored."""
        by_scope: dict[bytes, list[tuple[ToStore, float]]] = {}
        for staged in batch:
            job, buffer = staged.job, staged.buffer
            checksum = checksum_of(buffer)
            if job.checksum is not None and checksum != job.checksum:
                self.counters.torn_copies += 1
                _log.warning("copy differs from what was committed", block_hash=job.block_hash.hex())
                if self._why is not None:
                    self._why.note("torn", job.block_hash, job.tenant, tier=Source.HOT.value, depth=job.depth)
                continue
            to_store = ToStore(
                block_hash=job.block_hash,
                tenant=job.tenant,
                depth=job.depth,
                payload=buffer,
                checksum=checksum,
                parent=job.parent,
                codec=job.codec,
                copies=job.copies,
            )
            by_scope.setdefault(job.scope_id, []).append((to_store, staged.since))
        for scope_id, blocks in by_scope.items():
            assert self._redis is not None
            with span("worker.demote", n_blocks=len(blocks)):
                answers = self._redis.put([block for block, _ in blocks], scope_id=scope_id, layout=self._pool.layout)
            now = time.monotonic()
            for (_, since), answer in zip(blocks, answers, strict=True):
                if answer.stored:
                    self.counters.demoted.note(now - since)
