"""A core with a seam that tests answer by hand: nothing moves until a test says how the move ended."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tiered.core.allocate import Grant, Shortfall, allocate
from tiered.core.commit import commit
from tiered.core.core import CacheCore, CoreOptions
from tiered.core.invariants import check_core
from tiered.core.lease import Lease
from tiered.core.load_op import LoadOp
from tiered.core.match import match, open_lease
from tiered.core.planning import plan_fetch
from tiered.core.promote import start_load
from tiered.core.pump import pump
from tiered.core.release import release
from tiered.eviction.registry import policy_factory
from tiered.jobs import Completion, CopyDone, DemoteJob, FetchDone, FetchJob, Job, Origin, PeerAddress
from tiered.tenancy.policy import TenantPolicy
from tiered.types import BlockHash, BlockId, Source, TenantId

BLOCK_BYTES, BLOCK_TOKENS = 100, 4
RED, BLUE = TenantId("red"), TenantId("blue")
SCOPE = hashlib.sha256(b"scope").digest()
REDIS = Origin(Source.REDIS)
PEER = Origin(Source.PEER, PeerAddress("other", 1, "127.0.0.1", 1))
ENGINE = 1


def chain(name: str, n_blocks: int, *, scope: bytes = SCOPE) -> list[BlockHash]:
    """Hashes of a made-up prompt; equal names share every prefix."""
    link, hashes = scope, []
    for index in range(n_blocks):
        link = hashlib.sha256(link + f"{name}/{index}".encode()).digest()
        hashes.append(BlockHash(link))
    return hashes


def checksum(block_hash: BlockHash) -> bytes:
    """What the tests take for the checksum of a block's right bytes."""
    return hashlib.md5(block_hash).digest()


@dataclass
class HandSeam:
    """Keeps jobs until a test answers them; ``room`` bounds how many it takes."""

    room: int = 1_000_000
    fetches: list[FetchJob] = field(default_factory=list)
    copies: list[DemoteJob] = field(default_factory=list)
    done: list[Completion] = field(default_factory=list)
    n_submitted: int = 0

    def submit(self, jobs: Iterable[Job]) -> list[Job]:
        refused: list[Job] = []
        for job in jobs:
            if len(self.fetches) + len(self.copies) >= self.room:
                refused.append(job)
            elif isinstance(job, FetchJob):
                self.fetches.append(job)
            else:
                self.copies.append(job)
            self.n_submitted += 1
        return refused

    def poll(self) -> list[Completion]:
        done, self.done = self.done, []
        return done


@dataclass
class World:
    """One core, its seam, and the verbs in the order in which a host calls them. Checks every rule after each."""

    n_blocks: int
    policy: str = "lru"
    demote: str = "evicted"
    free_target_blocks: int = 0
    leaving_max: int = 32
    lower_tier: bool = True
    match_lease_s: float = 60.0
    core: CacheCore = field(init=False)
    seam: HandSeam = field(default_factory=HandSeam)
    now: float = 0.0

    def __post_init__(self) -> None:
        options = CoreOptions(
            block_bytes=BLOCK_BYTES,
            block_tokens=BLOCK_TOKENS,
            policy=policy_factory(self.policy),
            demote=self.demote,
            free_target_blocks=self.free_target_blocks,
            leaving_max=self.leaving_max,
            lower_tier=self.lower_tier,
            policy_name=self.policy,
            match_lease_s=self.match_lease_s,
        )
        self.core = CacheCore(options, self.n_blocks)

    def turn(self) -> None:
        pump(self.core, self.seam)
        check_core(self.core)

    def limit(self, tenant: TenantId, n_blocks: float | None, **bounds: object) -> None:
        """Give a tenant a policy; bounds named ``..._blocks`` are in blocks, others as the policy has them."""
        fields: dict[str, object] = {"tenant": tenant}
        for name, value in bounds.items():
            in_blocks = name == "hot_reserved_blocks"
            fields["hot_reserved_bytes" if in_blocks else name] = round(value * BLOCK_BYTES) if in_blocks else value  # type: ignore[operator, call-overload]
        if n_blocks is not None:
            fields["hot_limit_bytes"] = round(n_blocks * BLOCK_BYTES)
        self._policies = {**getattr(self, "_policies", {}), tenant: TenantPolicy.model_validate(fields)}
        self.core.set_policies(self._policies)
        self.turn()

    # Engines.

    def match(
        self,
        hashes: Sequence[BlockHash],
        *,
        tenant: TenantId = RED,
        connection: int = ENGINE,
        asked_tokens: int | None = None,
        below: Mapping[int, Sequence[Origin]] | Sequence[Origin] = (),
    ) -> Lease:
        """below: origins of every block that is not hot, or per index."""
        lease = match(
            self.core,
            hashes,
            connection=connection,
            tenant=tenant,
            scope_id=SCOPE,
            asked_tokens=len(hashes) * BLOCK_TOKENS if asked_tokens is None else asked_tokens,
            now=self.now,
        )
        rest = range(len(lease.pinned), len(hashes))
        origins = [tuple(below.get(i, ()) if isinstance(below, Mapping) else below) for i in rest]
        plan_fetch(self.core, lease, origins, now=self.now)
        check_core(self.core)
        return lease

    def load(self, lease: Lease) -> LoadOp:
        op = start_load(self.core, lease)
        self.turn()
        return op

    def release(self, lease: Lease, *, used_tokens: int = 0) -> None:
        release(self.core, lease, used_tokens=used_tokens)
        self.turn()

    def open(self, hashes: Sequence[BlockHash], *, tenant: TenantId = RED, connection: int = ENGINE) -> Lease:
        return open_lease(self.core, hashes, connection=connection, tenant=tenant, scope_id=SCOPE)

    def allocate(self, lease: Lease, *, n_blocks_max: int = 64, force: bool = False) -> Grant:
        grant = allocate(self.core, lease, n_blocks_max=n_blocks_max, force=force)
        self.turn()
        return grant

    def commit(self, lease: Lease, n_blocks: int | None = None) -> None:
        n = len(lease.filling) if n_blocks is None else n_blocks
        commit(self.core, lease, [checksum(self.core.table[b].block_hash) for b in lease.filling[:n]])
        self.turn()

    def save(
        self, hashes: Sequence[BlockHash], *, tenant: TenantId = RED, window: int = 64, force: bool = True
    ) -> tuple[int, Shortfall]:
        """A whole save as the clients do it; copies it needs are made at once unless it is forced."""
        lease = self.open(hashes, tenant=tenant)
        n_stored, shortfall = 0, Shortfall.NONE
        for _ in range(10_000):
            grant = self.allocate(lease, n_blocks_max=window, force=force)
            if not grant.block_ids and grant.shortfall is Shortfall.SOON:
                assert self.seam.copies, "room is said to come soon, and nothing is on its way"
                self.copy_all()
                continue
            if not grant.block_ids:
                shortfall = grant.shortfall
                break
            self.commit(lease)
            n_stored += len(grant.block_ids)
        else:
            raise AssertionError("a save that never ends")
        self.release(lease)
        return n_stored, shortfall

    # Movers.

    def answer(self, job: FetchJob, *, good: Iterable[BlockHash] | None = None) -> None:
        """good: the hashes that the origin has; all when left out."""
        self.seam.fetches.remove(job)
        have = set(job.hashes if good is None else good)
        checksums = tuple(checksum(h) if h in have else None for h in job.hashes)
        self.seam.done.append(FetchDone(job.ticket, checksums))
        self.turn()

    def copy(self, job: DemoteJob, *, copied: bool = True) -> None:
        self.seam.copies.remove(job)
        self.seam.done.append(CopyDone(job.ticket, copied=copied))
        self.turn()

    def copy_all(self) -> None:
        while self.seam.copies:
            self.copy(self.seam.copies[0])

    # What is seen from outside.

    def hot(self, hashes: Sequence[BlockHash]) -> int:
        """How many blocks from the first on would match; touches nothing."""
        return len(self.core.index.match(hashes))

    def used(self, tenant: TenantId) -> int:
        return self.core.ledger.used_bytes(tenant) // BLOCK_BYTES

    def id_of(self, block_hash: BlockHash) -> BlockId:
        block_id = self.core.index.find(block_hash)
        assert block_id is not None
        return block_id

    def victims(self, tenant: TenantId = RED) -> Iterator[BlockId]:
        return self.core.policies[tenant].victims()
