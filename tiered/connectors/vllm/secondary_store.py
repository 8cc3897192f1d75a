"""Chunks of vLLM's offloaded memory in the Redis tier, as a scheduler asks for them: every call returns at once.

Owns how lookups, jobs, tenants and errands go together, and no vLLM: chunks are named by vLLM's keys, memory is a
plain buffer with a row for each chunk. Called by the scheduler's thread alone; bytes move on others. Whatever happens
to Redis is a MISS or a failed job here, and never an exception.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tiered.clock import Clock, SystemClock
from tiered.codec.codecs import EXACT_CODECS
from tiered.codec.frame import CODEC_NONE
from tiered.codec.lossless import Lossless
from tiered.connectors.vllm.secondary_errands import Asker, Errands, Policies, Used
from tiered.connectors.vllm.secondary_identity import GROUP_BYTES, KEY_BYTES, ChunkIdentity, chunk_hash, group_of
from tiered.connectors.vllm.secondary_lookups import Answer, Lookups
from tiered.connectors.vllm.secondary_movers import NO_CHAINS, Chains, Move, Moved, Movers, Piece, runs_of
from tiered.connectors.vllm.secondary_settings import SecondarySettings, in_our_words
from tiered.errors import ConfigError, TierError
from tiered.hashing.scope import scope_id
from tiered.log import get_logger
from tiered.tiers.redis.counting import RedisTierCounters
from tiered.tiers.redis.tier import RedisTier
from tiered.types import HASH_BYTES, NO_HASH, BlockHash, TenantId

_PROBE: Final = BlockHash(bytes(HASH_BYTES))
"""A hash that nothing has."""

_LABELS_MAX: Final = 4096
_NOWHERE: Final = memoryview(b"")

_log = get_logger("tiered.vllm")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk by vLLM's key. row: of vLLM's memory. depth: chunks of its group before it in the prompt."""

    key: bytes
    depth: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class JobDone:
    """good: for each chunk of the job, in order, whether it is where it should be."""

    job_id: int
    good: Sequence[bool]
    took_s: float
    n_bytes: int


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """answers: given to lookups. unshareable: keys of a hash that is not to be trusted, each time they were met.
    uses_untold: chunks whose use Redis was not told of. The rest is the tier's own."""

    tier: RedisTierCounters
    answers: Mapping[Answer, int]
    chunks_loaded: int
    chunks_stored: int
    loads_failed: int
    stores_failed: int
    unshareable: int
    uses_untold: int


class SecondaryStore:
    def __init__(
        self, settings: SecondarySettings, identity: ChunkIdentity, memory: memoryview, *, clock: Clock | None = None
    ) -> None:
        """memory: rows of ``identity.layout.block_bytes`` bytes, one after the other.

        Errors: ConfigError naming the setting and the fix, with nothing left running.
        """
        self._settings = settings
        self._identity = identity
        self._clock = clock or SystemClock()
        self._memory = memory.cast("B")
        self._row_bytes = identity.layout.block_bytes
        self._policies = Policies()
        self._lookups = Lookups(wait_s=settings.tier.lookup_wait_s)
        self._is_down = False
        self._refused: list[JobDone] = []
        self._answers: Counter[Answer] = Counter()
        self._chunks: Counter[str] = Counter()
        self._scope_ids = lru_cache(_LABELS_MAX)(lambda label: scope_id(identity.scope, label=label))
        with ExitStack() as undo:
            undo.callback(self._memory.release)
            try:
                self._tier = RedisTier(settings.redis, self._clock)
                undo.callback(self._tier.close)
                self._errands = Errands(
                    settings.redis,
                    self._policies,
                    is_down=lambda: self._is_down,
                    probe=self._look_whether_redis_is_back,
                )
            except ConfigError as error:
                raise in_our_words(error) from None
            undo.pop_all()
        self._asker = Asker(self._tier, on_end=self._note_health)
        tier = settings.tier
        n_rows = self._memory.nbytes // self._row_bytes
        self._movers = Movers(
            self._tier,
            identity.layout,
            load_threads=tier.load_threads,
            store_threads=tier.store_threads,
            queue_chunks_max=tier.queue_chunks_max or max(1, n_rows // 4),
            load_timeout_s=tier.load_timeout_s,
            store_timeout_s=tier.store_timeout_s,
            on_end=self._note_health,
        )

    def begin_request(self, request: str) -> None:
        self._lookups.begin(request)

    def end_request(self, request: str) -> None:
        self._lookups.end(request)

    def lookup(self, key: bytes, request: str, tenant: TenantId | None) -> Answer:
        """tenant: None for one that may use nothing."""
        answer = Answer.MISS
        if tenant is not None and self._is_shareable(key):
            now = self._clock.now()
            self._take_answers(now)
            answer = self._lookups.ask(self._hash(key, tenant), request, now=now, is_down=self._is_down)
        self._answers[answer] += 1
        return answer

    def end_pass(self) -> None:
        """A scheduling pass is over: what it asked for goes out."""
        now = self._clock.now()
        self._take_answers(now)
        questions = self._lookups.end_pass(now)
        if questions and not self._asker.ask(questions):
            self._lookups.unanswered(questions, now=now)

    def store(
        self, job_id: int, request: str, tenant: TenantId | None, chunks: Sequence[Chunk], chains: Chains = NO_CHAINS
    ) -> None:
        """Rows of vLLM's memory to Redis, which vLLM leaves alone until the job is done.

        chains: of the prompt, as far as it is known: by group, the keys of its chunks from the first one on.
        """
        self._begin(Movers.store, job_id, request, tenant, chunks, chains)

    def load(
        self, job_id: int, request: str, tenant: TenantId | None, chunks: Sequence[Chunk], chains: Chains = NO_CHAINS
    ) -> None:
        """From Redis into rows of vLLM's memory. The row of a chunk that failed may hold anything."""
        self._begin(Movers.load, job_id, request, tenant, chunks, chains)

    def used(self, tenant: TenantId | None, chunks: Sequence[Chunk]) -> None:
        """A request used chunks that were near enough not to be loaded; they are to stay in Redis all the same."""
        if tenant is None or self._is_down:
            return
        shareable = [chunk for chunk in chunks if self._is_shareable(chunk.key)]
        pieces = [Piece(self._hash(c.key, tenant), _NOWHERE, group_of(c.key), c.depth) for c in shareable]
        for run in runs_of(pieces):
            used = Used(tenant, [pieces[i].block_hash for i in run], pieces[run[0]].depth)
            self._chunks["untold"] += 0 if self._errands.used(used) else len(run)

    def finished(self) -> list[JobDone]:
        """Jobs that ended since the last call; each is reported once."""
        refused, self._refused = self._refused, []
        return refused + [self._settled(moved) for moved in self._movers.finished()]

    def drain(self) -> None:
        """Until nobody touches vLLM's memory any more; every job is then reported by :meth:`finished`."""
        self._movers.drain()

    def close(self) -> None:
        """Ends all threads and lets go of the memory. Jobs that had not begun are given up."""
        self._movers.close()
        self.finished()  # nobody asks any more, but their places are to be let go of
        self._asker.close()
        self._errands.close()
        self._tier.close()
        self._memory.release()
        gc.collect()  # the traceback of a call that failed may still hold a frame that holds a place

    def counters(self) -> StoreCounters:
        count = self._chunks
        return StoreCounters(
            tier=self._tier.counters(),
            answers=dict(self._answers),
            chunks_loaded=count["load"],
            chunks_stored=count["store"],
            loads_failed=count["load failed"],
            stores_failed=count["store failed"],
            unshareable=count["unshareable"],
            uses_untold=count["untold"],
        )

    def _begin(
        self,
        begin: Callable[[Movers, Move], None],
        job_id: int,
        request: str,
        tenant: TenantId | None,
        chunks: Sequence[Chunk],
        chains: Chains,
    ) -> None:
        if tenant is None or not all(self._is_shareable(chunk.key) for chunk in chunks):
            self._refused.append(JobDone(job_id, [False] * len(chunks), took_s=0.0, n_bytes=0))
            return
        policy = self._policies.of(tenant)
        root, size = self._scope_ids(policy.label), self._row_bytes
        pieces = [
            Piece(
                block_hash=chunk_hash(root, chunk.key),
                place=self._memory[chunk.row * size : (chunk.row + 1) * size],
                group=group_of(chunk.key),
                depth=chunk.depth,
                parent=_parent(root, chunk, chains),
            )
            for chunk in chunks
        ]
        # A lossy codec would have to know what the numbers are; these bytes are vLLM's own.
        codec = policy.redis_codec if policy.redis_codec in (CODEC_NONE, *EXACT_CODECS) else Lossless.name
        begin(self._movers, Move(job_id, request, tenant, root, pieces, chains, codec, policy.copies))

    def _settled(self, moved: Moved) -> JobDone:
        move, n_good = moved.move, sum(moved.good)
        pairs = list(zip(move.pieces, moved.good, strict=True))
        kind = "load" if moved.is_load else "store"
        self._chunks[kind] += n_good
        self._chunks[f"{kind} failed"] += len(pairs) - n_good
        if moved.is_load:
            self._lookups.failed((piece.block_hash for piece, good in pairs if not good), move.request)
        else:
            self._lookups.changed(piece.block_hash for piece, good in pairs if good)
        done = JobDone(move.job_id, moved.good, moved.took_s, moved.n_bytes)
        for piece in move.pieces:
            piece.place.release()  # vLLM takes its memory apart when it ends
        return done

    def _hash(self, key: bytes, tenant: TenantId) -> BlockHash:
        return chunk_hash(self._scope_ids(self._policies.of(tenant).label), key)

    def _is_shareable(self, key: bytes) -> bool:
        if len(key) == KEY_BYTES:
            return True
        if not self._chunks["unshareable"]:
            _log.error(
                "nothing is cached: vLLM's block hashes are not SHA-256; start it with "
                "--prefix-caching-hash-algo sha256_cbor",
                hash_bytes=len(key) - GROUP_BYTES,
            )
        self._chunks["unshareable"] += 1
        return False

    def _take_answers(self, now: float) -> None:
        for answers in self._asker.answers():
            self._lookups.answered(answers, now=now)

    def _note_health(self) -> None:
        """By any of the threads, after each call."""
        self._is_down = self._tier.counters().breaker_open

    def _look_whether_redis_is_back(self) -> None:
        with suppress(TierError):
            self._tier.lookup([_PROBE])
        self._note_health()


def _parent(root: bytes, chunk: Chunk, chains: Chains) -> BlockHash:
    chain = chains.get(group_of(chunk.key), ())
    return chunk_hash(root, chain[chunk.depth - 1]) if 0 < chunk.depth <= len(chain) else NO_HASH
