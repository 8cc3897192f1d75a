"""Replays requests through cores like the workers' own: same table, index, tenancy and policy, a pool without bytes.

One request after the other: its longest cached prefix is found and pinned, the rest is fetched from another worker or
from Redis as far as they have it without a gap, what is still missing is computed, and all of it is kept as far as
there is room. A block hit counts only inside that prefix.
"""

from __future__ import annotations

import enum
import hashlib
import heapq
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tiered.core.allocate import allocate
from tiered.core.commit import commit
from tiered.core.core import CacheCore, CoreOptions
from tiered.core.lease import Lease
from tiered.core.match import match
from tiered.core.release import release
from tiered.core.requests import ended
from tiered.eviction.registry import policy_factory
from tiered.simulate.outcome import Cause, Outcome
from tiered.simulate.redis_model import RedisModel
from tiered.simulate.tenants import ONE, Tenants
from tiered.simulate.trace import Request
from tiered.types import HINT_CHARS_MAX, BlockHash, Hints

SCOPE: Final = b"simulated"
CONNECTION: Final = 1
BLOCK_BYTES: Final = 5_040
"""What the ledger charges a block: any number that up to ten tenants can share in equal parts to the byte."""

LABEL_FIELDS: Final = ("subagent", "model", "sys_prompt", "tool_tokens")

OUTPUT_TOKEN_S: Final = 0.03
"""How long a request runs for each token of its answer, where its trace does not say how long it ran."""


class Routing(enum.StrEnum):
    ROUND_ROBIN = "round-robin"
    AFFINITY = "affinity"
    """Requests of one session go to one worker; without a session id, those with one first block."""


class WritePolicy(enum.StrEnum):
    ON_EVICT = "on_evict"
    ON_REUSE = "on_reuse"
    """When it is evicted, if another request used it since it came."""
    ON_COMMIT = "on_commit"
    NEVER = "never"


def hints_of_trace(request: Request) -> Hints:
    """The labels that a trace's own fields give: what kind of client and model it is."""
    fields = request.fields
    return Hints(labels=tuple(_label(name, fields[name]) for name in LABEL_FIELDS if name in fields))


def _label(name: str, value: object) -> str:
    """A text that is too long for one by its hash: cut, prompts that begin alike would be of one kind."""
    label = f"{name}={value}"
    return label if len(label) <= HINT_CHARS_MAX else f"{name}=sha256:{hashlib.sha256(label.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Setup:
    """One cell of a sweep. hot_blocks: of each worker."""

    policy: str
    hot_blocks: int
    redis_blocks: int = 0
    n_workers: int = 1
    routing: Routing = Routing.ROUND_ROBIN
    write_policy: WritePolicy = WritePolicy.ON_EVICT
    tenants: Tenants = ONE
    hints_of: Callable[[int, Request], Hints] = lambda number, request: hints_of_trace(request)
    """What the caller of the request with this number says of it."""


def replay(requests: Sequence[Request], setup: Setup, *, on_request: Callable[[], None] | None = None) -> Outcome:
    """Errors: ConfigError for an unknown policy, or for tenants who were promised more than the pool."""
    fleet = Fleet(setup, n_blocks_max=_different_blocks(requests, setup.tenants))
    for number, request in enumerate(requests):
        fleet.serve(number, request)
        if on_request is not None:
            on_request()
    return fleet.outcome


def _different_blocks(requests: Sequence[Request], tenants: Tenants) -> int:
    """At least 1. Tenants of different labels have blocks of their own."""
    seen: dict[str, set[int]] = {}
    for request in requests:
        seen.setdefault(tenants.label(tenants.of(request)), set()).update(request.blocks)
    return max(1, sum(len(blocks) for blocks in seen.values()))


class Fleet:
    """The workers of one replay and what they share.

    n_blocks_max: no worker's pool is made larger; where the trace has no more different blocks, more hit nothing.
    """

    def __init__(self, setup: Setup, *, n_blocks_max: int | None = None) -> None:
        self._setup = setup
        self._redis = RedisModel(setup.redis_blocks)
        self.outcome = Outcome()
        options = CoreOptions(
            block_bytes=BLOCK_BYTES,
            block_tokens=1,
            policy=policy_factory(setup.policy),
            match_lease_s=float("inf"),
            lower_tier=False,  # nothing is copied here: what leaves is seen in the core's events
        )
        n_blocks = setup.hot_blocks if n_blocks_max is None else min(setup.hot_blocks, n_blocks_max)
        self.cores = [CacheCore(options, n_blocks) for _ in range(setup.n_workers)]
        for core in self.cores:
            core.set_policies(setup.tenants.policies(setup.hot_blocks))
        self._names: dict[str, _Names] = {}
        """Block hashes by the label of who shares them."""
        self._reused: list[set[BlockHash]] = [set() for _ in self.cores]
        """Of each worker's blocks those that were used again since they came, where that decides what is written."""
        self._now = float("-inf")
        self._running: list[tuple[float, int, int, CacheCore, Lease]] = []
        """Requests by when they end; their blocks are free to leave before that, as one comes after the other."""

    def serve(self, number: int, request: Request) -> None:
        self._now = max(self._now, request.arrival_s)  # a log may be a little out of order, a core's clock may not
        self._end_until(self._now)
        tenant = self._setup.tenants.of(request)
        hashes = self._hash(request.blocks, self._setup.tenants.label(tenant))
        worker = self._route(number, request)
        core = self.cores[worker]
        lease = match(
            core,
            hashes,
            connection=CONNECTION,
            tenant=tenant,
            scope_id=SCOPE,
            asked_tokens=len(hashes),
            now=self._now,
            hints=self._setup.hints_of(number, request),
        )
        n_hot = len(lease.pinned)
        n_peer, n_redis = self._below(core, hashes[n_hot:])
        for tally in self.outcome.of(tenant):
            tally.count(n_blocks=len(hashes), hot=n_hot, peer=n_peer, redis=n_redis)
        while True:
            grant = allocate(core, lease, n_blocks_max=len(hashes), force=True)
            if not grant.block_ids:
                break
            commit(core, lease, [None] * len(grant.block_ids))
        self._count_evictions(core, lease)
        release(core, lease, used_tokens=n_hot)
        ends_at = self._now + _service_s(request)
        heapq.heappush(self._running, (ends_at, number, request.output_tokens, core, lease))
        self._settle(worker, hashes[: n_hot + n_peer + n_redis])

    def _end_until(self, now: float) -> None:
        while self._running and self._running[0][0] <= now:
            ends_at, _, output_tokens, core, lease = heapq.heappop(self._running)
            ended(core, lease, now=ends_at, output_tokens=output_tokens)

    def _hash(self, blocks: Sequence[int], label: str) -> list[BlockHash]:
        names = self._names.get(label)
        if names is None:
            names = self._names[label] = _Names(len(self._names).to_bytes(4, "big"))
        return [names[block] for block in blocks]

    def _route(self, number: int, request: Request) -> int:
        if len(self.cores) == 1:
            return 0
        if self._setup.routing is Routing.ROUND_ROBIN:
            return number % len(self.cores)
        session = request.fields.get("session_id")
        named = str(session if session is not None else request.blocks[:1])
        return zlib.crc32(named.encode()) % len(self.cores)  # the same in every process, unlike hash()

    def _below(self, core: CacheCore, missing: Sequence[BlockHash]) -> tuple[int, int]:
        """How many of the missing blocks, without a gap, other workers and Redis have."""
        found: Counter[str] = Counter()
        if len(self.cores) == 1 and not self._setup.redis_blocks:
            return 0, 0
        others = [other for other in self.cores if other is not core]
        for block_hash in missing:
            if any(other.index.find(block_hash) is not None for other in others):
                found["peer"] += 1
            elif block_hash in self._redis:
                found["redis"] += 1
            else:
                break
        return found["peer"], found["redis"]

    def _count_evictions(self, core: CacheCore, lease: Lease) -> None:
        """Whose blocks left for this request, and why.

        Those of its own left for its limit if that is where it stands now, else because the pool was full.
        """
        if not lease.gave:
            return
        at_limit = core.ledger.excess_bytes(lease.tenant, asked_bytes=BLOCK_BYTES) > 0
        for giver, n_blocks in lease.gave.items():
            cause = Cause.RECLAIMED if giver != lease.tenant else Cause.LIMIT if at_limit else Cause.OWN
            for tally in self.outcome.of(giver):
                tally.evicted[cause] += n_blocks

    def _settle(self, worker: int, used: Sequence[BlockHash]) -> None:
        """What came and what left, for Redis."""
        events = self.cores[worker].drain_events()
        write = self._setup.write_policy
        if not self._setup.redis_blocks or write is WritePolicy.NEVER:
            return
        self._redis.touch(used)
        if write is WritePolicy.ON_EVICT:
            self.outcome.redis_writes += self._redis.put(events.removed)
        elif write is WritePolicy.ON_COMMIT:
            self.outcome.redis_writes += self._redis.put(tuple(reversed(events.stored)))
        else:
            reused = self._reused[worker]
            self.outcome.redis_writes += self._redis.put([left for left in events.removed if left in reused])
            reused.difference_update(events.removed)
            reused.update(used)


class _Names(dict[int, BlockHash]):
    """Hashes of a trace's blocks under one label, made when first asked for."""

    def __init__(self, salt: bytes) -> None:
        super().__init__()
        self._salt = salt

    def __missing__(self, block: int) -> BlockHash:
        block_hash = self[block] = BlockHash(self._salt + block.to_bytes(8, "big", signed=True))
        return block_hash


def _service_s(request: Request) -> float:
    api_ms = request.fields.get("api_ms")
    return request.output_tokens * OUTPUT_TOKEN_S if api_ms is None else float(api_ms) / 1e3
