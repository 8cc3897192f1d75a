"""Moves chunks between vLLM's memory and Redis on a few threads, and answers for every job exactly once.

Owns the queues, which are bounded in chunks, the threads and the deadlines of a job. A chunk's bytes go straight from
and into its row of vLLM's memory; nobody here knows what they mean, and the tier verifies what came before it is
reported. Redis failing is a failed chunk; a defect is logged and its whole job has failed.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from tiered.connectors.vllm.secondary_identity import chunk_hash
from tiered.connectors.vllm.secondary_lane import Lane
from tiered.layout import KvLayout
from tiered.log import get_logger
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.tier import ToStore, Wanted
from tiered.types import NO_HASH, BlockHash, TenantId

BATCH_CHUNKS: Final = 8
"""Stored by the same three round trips; between two batches a store may end early."""

_STORED: Final = frozenset(
    {
        PutAnswer.STORED,
        PutAnswer.STORED_AFTER_EVICTING_OWN,
        PutAnswer.STORED_AFTER_RECLAIMING,
        PutAnswer.ALREADY_THERE,
    }
)

Chains: TypeAlias = Mapping[int, Sequence[bytes]]
"""Of one prompt, as far as it is known: by group, vLLM's keys of its chunks from the first one on."""

NO_CHAINS: Final[Chains] = MappingProxyType({})

_log = get_logger("tiered.vllm")


@dataclass(frozen=True, slots=True)
class Piece:
    """One chunk of a job. depth: chunks of its group before it in the prompt, the last of which is parent."""

    block_hash: BlockHash
    place: memoryview
    group: int
    depth: int
    parent: BlockHash = NO_HASH


@dataclass(frozen=True, slots=True)
class Move:
    """A job: its chunks in the order in which they were given."""

    job_id: int
    request: str
    tenant: TenantId
    scope_id: bytes
    pieces: Sequence[Piece]
    chains: Chains
    codec: str = "none"
    copies: int = 1

    @property
    def n_chunks(self) -> int:
        return len(self.pieces)


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of a job: for each of its chunks whether it is where it should be. n_bytes: that were moved."""

    move: Move
    is_load: bool
    good: Sequence[bool]
    took_s: float

    @property
    def n_bytes(self) -> int:
        return sum(piece.place.nbytes for piece, good in zip(self.move.pieces, self.good, strict=True) if good)


class ChunkTier(Protocol):
    """What the movers need of :class:`~tiered.tiers.redis.tier.RedisTier`."""

    def get(
        self,
        wanted: Sequence[Wanted],
        *,
        scope_id: bytes,
        tenant: TenantId,
        layout: KvLayout,
        exact_only: bool,
        first_depth: int,
        before: Sequence[BlockHash],
        within_s: float,
    ) -> list[bytes | None]: ...

    def put(self, blocks: Sequence[ToStore], *, scope_id: bytes, layout: KvLayout) -> list[PutAnswer]: ...


class Movers:
    """Two lanes, so that loads never wait behind stores. Offered, drained and closed by one thread."""

    def __init__(
        self,
        tier: ChunkTier,
        layout: KvLayout,
        *,
        load_threads: int,
        store_threads: int,
        queue_chunks_max: int,
        load_timeout_s: float,
        store_timeout_s: float,
        on_end: Callable[[], None],
    ) -> None:
        """on_end: called by the movers' threads after each job."""
        self._tier = tier
        self._layout = layout
        self._load_timeout_s = load_timeout_s
        self._store_timeout_s = store_timeout_s
        self._on_end = on_end
        self._moved: queue.SimpleQueue[Moved] = queue.SimpleQueue()
        self._loads = Lane("load", load_threads, queue_chunks_max, self._run_load)
        self._stores = Lane("store", store_threads, queue_chunks_max, self._run_store)

    def load(self, move: Move) -> None:
        """Fetch the chunks into their places. A full queue fails the job at once."""
        self._offer(self._loads, move)

    def store(self, move: Move) -> None:
        self._offer(self._stores, move)

    def finished(self) -> list[Moved]:
        """All jobs that ended since the last call."""
        moved: list[Moved] = []
        while True:
            try:
                moved.append(self._moved.get_nowait())
            except queue.Empty:
                return moved

    def drain(self) -> None:
        """Until no thread is in anybody's memory. What had not begun has failed; what had begun ends within its
        deadline, a store after the batch it is at."""
        for lane in (self._loads, self._stores):
            for move in lane.halt():
                self._report(move, lane, [False] * len(move.pieces), took_s=0.0)
        for lane in (self._loads, self._stores):
            lane.wait_idle()
            lane.resume()

    def close(self) -> None:
        self.drain()
        for lane in (self._loads, self._stores):
            lane.close()

    def _offer(self, lane: Lane[Move], move: Move) -> None:
        if not lane.offer(move):
            self._report(move, lane, [False] * len(move.pieces), took_s=0.0)

    def _report(self, move: Move, lane: Lane[Move], good: Sequence[bool], *, took_s: float) -> None:
        self._moved.put(Moved(move, lane is self._loads, good, took_s))

    def _run_load(self, move: Move) -> None:
        self._run(move, self._loads, self._load)

    def _run_store(self, move: Move) -> None:
        self._run(move, self._stores, self._store)

    def _run(self, move: Move, lane: Lane[Move], work: Callable[[Move, list[bool]], None]) -> None:
        began = time.monotonic()
        good = [False] * len(move.pieces)
        try:
            work(move, good)
        except Exception:
            # A defect must not leave vLLM waiting for a job that never ends, nor let it use what may be half there.
            _log.exception("a job failed", job=move.job_id, n_chunks=len(move.pieces))
            good = [False] * len(move.pieces)
        self._on_end()
        self._report(move, lane, good, took_s=time.monotonic() - began)

    def _load(self, move: Move, good: list[bool]) -> None:
        ends_at = time.monotonic() + self._load_timeout_s
        for run in runs_of(move.pieces):
            wanted = [Wanted(move.pieces[i].block_hash, move.pieces[i].place) for i in run]
            first = move.pieces[run[0]]
            checksums = self._tier.get(
                wanted,
                scope_id=move.scope_id,
                tenant=move.tenant,
                layout=self._layout,
                exact_only=True,
                first_depth=first.depth,
                before=[chunk_hash(move.scope_id, k) for k in move.chains.get(first.group, ())[: first.depth]],
                within_s=max(0.0, ends_at - time.monotonic()),
            )
            for i, checksum in zip(run, checksums, strict=True):
                good[i] = checksum is not None

    def _store(self, move: Move, good: list[bool]) -> None:
        ends_at = time.monotonic() + self._store_timeout_s
        order = [i for run in runs_of(move.pieces) for i in run]
        for start in range(0, len(order), BATCH_CHUNKS):
            if self._stores.is_halted or time.monotonic() >= ends_at:
                return
            batch = order[start : start + BATCH_CHUNKS]
            blocks = [
                ToStore(
                    block_hash=piece.block_hash,
                    tenant=move.tenant,
                    depth=piece.depth,
                    payload=piece.place,
                    checksum=None,
                    parent=piece.parent,
                    codec=move.codec,
                    copies=move.copies,
                )
                for piece in (move.pieces[i] for i in batch)
            ]
            answers = self._tier.put(blocks, scope_id=move.scope_id, layout=self._layout)
            for i, answer in zip(batch, answers, strict=True):
                good[i] = answer in _STORED


def runs_of(pieces: Sequence[Piece]) -> list[list[int]]:
    """Places of pieces that follow one another in a prompt, from its beginning on, group by group."""
    places = sorted(range(len(pieces)), key=lambda i: (pieces[i].group, pieces[i].depth))
    if not places:
        return []
    breaks = [0]
    for left, right in pairwise(places):
        follows = pieces[left].group == pieces[right].group and pieces[left].depth + 1 == pieces[right].depth
        breaks.append(breaks[-1] + (not follows))
    return [[i for _, i in run] for _, run in groupby(zip(breaks, places, strict=True), key=lambda pair: pair[0])]
