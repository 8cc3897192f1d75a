"""Replays requests through cores like the workers' own: same table, index, tenancy and policy, a pool without bytes.

One request after the other: its longest cached prefix is found and pinned, the rest is fetched from another worker or
from Redis as far as they have it without a gap, what is still missing is computed, and all of it is kept as far as
there is room. A block hit counts only inside that prefix.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tiered.core.allocate import allocate
from tiered.core.commit import commit
from tiered.core.core import CacheCore, CoreOptions
from tiered.core.lease import Lease
from tiered.core.match import match
from tiered.core.release import release
from tiered.core.requests import ended
from tiered.eviction.registry import policy_factory
from tiered.simulate.redis_model import RedisModel
from tiered.simulate.trace import Request
from tiered.types import BlockHash, Hints, TenantId

SCOPE = b"simulated"
CONNECTION = 1


LABEL_FIELDS: Final = ("subagent", "model", "sys_prompt", "tool_tokens")

OUTPUT_TOKEN_S: Final = 0.03
"""How long a request runs for each token of its answer, where its trace does not say how long it ran."""


class Routing(enum.StrEnum):
    ROUND_ROBIN = "round-robin"
    AFFINITY = "affinity"
    """Requests of one session go to one worker; without a session id, those with one first block."""


class WritePolicy(enum.StrEnum):
    ON_EVICT = "on_evict"
    ON_COMMIT = "on_commit"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Setup:
    """One cell of a sweep. hot_blocks: of each worker."""

    policy: str
    hot_blocks: int
    redis_blocks: int = 0
    n_workers: int = 1
    routing: Routing = Routing.ROUND_ROBIN
    write_policy: WritePolicy = WritePolicy.ON_EVICT
    tenant_of: Callable[[Request], TenantId] = lambda request: TenantId("all")
    hints_of: Callable[[int, Request], Hints] = lambda number, request: hints_of_trace(request)
    """What the caller of the request with this number says of it."""


def hints_of_trace(request: Request) -> Hints:
    """The labels that a trace's own fields give: what kind of client and model it is."""
    fields = request.fields
    return Hints(labels=tuple(f"{name}={fields[name]}" for name in LABEL_FIELDS if name in fields))


@dataclass(slots=True)
class Tally:
    """Blocks by where they were found."""

    accesses: int = 0
    hot_hits: int = 0
    peer_hits: int = 0
    redis_hits: int = 0

    @property
    def hit_ratio(self) -> float:
        """Percent of all block accesses, to two decimals."""
        return round(100 * (self.hot_hits + self.peer_hits + self.redis_hits) / max(1, self.accesses), 2)


@dataclass(slots=True)
class Outcome:
    """What one replay came to. redis_writes and evictions: blocks."""

    total: Tally = field(default_factory=Tally)
    tenants: dict[TenantId, Tally] = field(default_factory=dict)
    redis_writes: int = 0
    evictions: int = 0


def replay(requests: Iterable[Request], setup: Setup, *, on_request: Callable[[], None] | None = None) -> Outcome:
    """Errors: ConfigError for an unknown policy."""
    fleet = Fleet(setup)
    for number, request in enumerate(requests):
        fleet.serve(number, request)
        if on_request is not None:
            on_request()
    return fleet.outcome


class Fleet:
    """The workers of one replay and what they share."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._redis = RedisModel(setup.redis_blocks)
        self.outcome = Outcome()
        options = CoreOptions(
            block_bytes=1,
            block_tokens=1,
            policy=policy_factory(setup.policy),
            match_lease_s=float("inf"),
            lower_tier=False,  # nothing is copied here: what leaves is seen in the core's events
        )
        self.cores = [CacheCore(options, setup.hot_blocks) for _ in range(setup.n_workers)]
        self._hashes: dict[int, BlockHash] = {}
        self._running: list[tuple[float, int, int, CacheCore, Lease]] = []
        """Requests by when they end; their blocks are free to leave before that, as one comes after the other."""

    def serve(self, number: int, request: Request) -> None:
        self._end_until(request.arrival_s)
        tenant = self._setup.tenant_of(request)
        hashes = self._hash(request.blocks)
        core = self.cores[self._route(number, request)]
        lease = match(
            core,
            hashes,
            connection=CONNECTION,
            tenant=tenant,
            scope_id=SCOPE,
            asked_tokens=len(hashes),
            now=request.arrival_s,
            hints=self._setup.hints_of(number, request),
        )
        n_hot = len(lease.pinned)
        found = self._below(core, hashes[n_hot:])
        self._count(tenant, len(hashes), n_hot, found)
        while True:
            grant = allocate(core, lease, n_blocks_max=len(hashes), force=True)
            if not grant.block_ids:
                break
            commit(core, lease, [None] * len(grant.block_ids))
        release(core, lease, used_tokens=n_hot)
        ends_at = request.arrival_s + _service_s(request)
        heapq.heappush(self._running, (ends_at, number, request.output_tokens, core, lease))
        self._settle(core, hashes[: n_hot + found.total()])

    def _end_until(self, now: float) -> None:
        while self._running and self._running[0][0] <= now:
            ends_at, _, output_tokens, core, lease = heapq.heappop(self._running)
            ended(core, lease, now=ends_at, output_tokens=output_tokens)

    def _hash(self, blocks: Sequence[int]) -> list[BlockHash]:
        known = self._hashes
        hashes = []
        for block in blocks:
            block_hash = known.get(block)
            if block_hash is None:
                block_hash = known[block] = BlockHash(block.to_bytes(8, "big", signed=True))
            hashes.append(block_hash)
        return hashes

    def _route(self, number: int, request: Request) -> int:
        if len(self.cores) == 1:
            return 0
        if self._setup.routing is Routing.ROUND_ROBIN:
            return number % len(self.cores)
        session = request.fields.get("session_id")
        return hash(str(session if session is not None else request.blocks[:1])) % len(self.cores)

    def _below(self, core: CacheCore, missing: Sequence[BlockHash]) -> Counter[str]:
        """How many of the missing blocks, without a gap, other workers and Redis have."""
        found: Counter[str] = Counter()
        others = [other for other in self.cores if other is not core]
        for block_hash in missing:
            if any(other.index.find(block_hash) is not None for other in others):
                found["peer"] += 1
            elif block_hash in self._redis:
                found["redis"] += 1
            else:
                break
        return found

    def _count(self, tenant: TenantId, n_blocks: int, n_hot: int, found: Counter[str]) -> None:
        for tally in (self.outcome.total, self.outcome.tenants.setdefault(tenant, Tally())):
            tally.accesses += n_blocks
            tally.hot_hits += n_hot
            tally.peer_hits += found["peer"]
            tally.redis_hits += found["redis"]

    def _settle(self, core: CacheCore, used: Sequence[BlockHash]) -> None:
        """What came and what left, for Redis and for the books."""
        events = core.drain_events()
        self.outcome.evictions += len(events.removed)
        if not self._setup.redis_blocks:
            return
        write = self._setup.write_policy
        self._redis.touch(used)
        if write is WritePolicy.ON_EVICT:
            self.outcome.redis_writes += self._redis.put(events.removed)
        elif write is WritePolicy.ON_COMMIT:
            self.outcome.redis_writes += self._redis.put(tuple(reversed(events.stored)))


def _service_s(request: Request) -> float:
    api_ms = request.fields.get("api_ms")
    return request.output_tokens * OUTPUT_TOKEN_S if api_ms is None else float(api_ms) / 1e3
