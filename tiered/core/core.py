"""CacheCore: owns table, index, policies, ledger and leases; takes completions, emits jobs and events.

Reads no clock, opens no socket, waits for nothing, and is not thread-safe: its host gives it one caller at a time.
The verbs live beside this file, one each; this class holds the state they share and the two ways in which a block
comes and goes, so that index, policy, ledger and directory can never disagree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from tiered.blocks.record import BlockRecord
from tiered.blocks.state import BlockState
from tiered.blocks.table import BlockTable
from tiered.core.copies import SecondCopies
from tiered.core.fetch_plan import PlanCounters
from tiered.core.lease import Lease
from tiered.core.load_op import LoadOp
from tiered.core.why import WhyLog
from tiered.curve.sampler import Sampler
from tiered.errors import OwnershipError
from tiered.estimate.prefill import PrefillRate
from tiered.estimate.sources import Sources
from tiered.eviction.policy import EvictionPolicy, PolicyFactory, RequestAware
from tiered.jobs import CopyDone, Job, Origin
from tiered.metrics.tenant_labels import OTHER
from tiered.prefix.index import PrefixIndex
from tiered.sequence.sequence import TokenSequence
from tiered.tenancy.copies import NO_SECONDS, TwoCopies, two_copies
from tiered.tenancy.ledger import HotLedger
from tiered.tenancy.policy import Share, TenantPolicy
from tiered.tenancy.promise import LeavingAge, Promise
from tiered.types import BlockHash, BlockId, LeaseId, SequenceId, Source, TenantId, Ticket, TokenCounts

POLICIES_MAX: Final = 256
"""Eviction policies beside those of tenants that hold blocks: one that learns may take 100 KB."""

COUNTED_MAX: Final = 1_000
"""Tenants without a policy of their own that are counted by name; each costs a line in every heartbeat."""

ATTENTION_EVEN_TOKENS: Final = 24_576
"""Prefix length at which attending to it costs a new token as much as all else does.

Per layer of hidden size d that is 4 x prefix x d operations against about 24 x d x d, so 6 x d: here d = 4,096, as in
models of 7 to 8 billion parameters. Policies compare costs with each other, so what matters is the shape.
"""


@dataclass(slots=True)
class TenantCounters:
    """Grow for the life of the worker."""

    tokens: TokenCounts = field(default_factory=TokenCounts)
    evicted: int = 0
    demoted: int = 0
    refused: int = 0
    refused_by_limit: int = 0
    """Of the refused ones, those that were refused because of its own limit."""
    saved_s: float = 0.0
    """Prefill that its requests were spared, at the rate measured when each ended; 0 while none is."""
    reclaimed: int = 0
    """Of the evicted ones, those that left so that another tenant could have the room."""
    caused: int = 0
    """Other tenants' blocks that left so that this one could have the room."""
    wanted: int = 0
    """Blocks that it was refused, or gave of its own, when it asked for more than its limit."""


@dataclass(frozen=True, slots=True)
class DirectoryEvents:
    """What became matchable here and what left, in order of the last change of each block."""

    stored: tuple[BlockHash, ...]
    removed: tuple[BlockHash, ...]


@dataclass(slots=True)
class CoreOptions:
    """block_bytes: of the pool. demote: which evicted blocks are worth Redis. free_target: blocks kept free."""

    block_bytes: int
    block_tokens: int
    policy: PolicyFactory
    demote: str = "evicted"
    free_target_blocks: int = 0
    leaving_max: int = 32
    """Copies under way at once; more victims wait for the next ones to finish."""
    match_lease_s: float = 60.0
    lower_tier: bool = True
    """False: nothing below the hot tier, so eviction drops."""
    policy_name: str = ""
    """For who is told why a block left."""


@dataclass(slots=True)
class CacheCore:
    """State shared by the verbs of this folder. ``n_blocks`` slots, all free at first."""

    options: CoreOptions
    n_blocks: int
    table: BlockTable = field(init=False)
    index: PrefixIndex = field(init=False, default_factory=PrefixIndex)
    ledger: HotLedger = field(init=False)
    promises: dict[TenantId, Promise] = field(init=False, default_factory=dict)
    """Of the tenants that have a reservation."""
    leaving_age: LeavingAge = field(init=False)
    n_used: int = field(init=False, default=0)
    """Blocks found or made whole so far: the clock by which one was used before another."""
    n_promised: int = field(init=False, default=0)
    """The same without what tenants that have no reservation found: the clock by which what is reserved is idle, so
    that who looks up its own blocks again and again makes nobody else's look so."""
    policies: dict[TenantId, EvictionPolicy] = field(init=False, default_factory=dict)
    leases: dict[LeaseId, Lease] = field(init=False, default_factory=dict)
    filling: dict[BlockHash, BlockId] = field(init=False, default_factory=dict)
    """Hashes being written, by an engine or by a fetch: nobody writes one twice."""
    fetching: dict[BlockHash, Origin] = field(init=False, default_factory=dict)
    """The part of ``filling`` that a load is fetching, and from where."""
    counters: dict[TenantId, TenantCounters] = field(init=False, default_factory=dict)
    leaving: dict[Ticket, BlockId] = field(init=False, default_factory=dict)
    recalled: dict[Ticket, BlockId] = field(init=False, default_factory=dict)
    """Copies under way of blocks that stay: a hit brought them back, or they are copied as soon as they are whole.
    Each pins its block until it ends."""
    uncopied: deque[tuple[BlockId, BlockHash]] = field(init=False, default_factory=deque)
    """Of ``demote: always``, and of tenants that ask for two copies: blocks whose copies are still to be begun, as
    they became whole."""
    two_copies: TwoCopies = field(init=False, default=NO_SECONDS)
    seconds: SecondCopies = field(init=False, default_factory=SecondCopies)
    loads: dict[int, LoadOp] = field(init=False, default_factory=dict)
    strays: dict[Ticket, tuple[BlockId, ...]] = field(init=False, default_factory=dict)
    """Slots that a fetch is writing into and nobody will ever match: they come back when it ends."""
    sources: Sources = field(init=False)
    prefill: PrefillRate = field(init=False, default_factory=PrefillRate)
    plans: PlanCounters = field(init=False, default_factory=PlanCounters)
    now: float = field(init=False, default=0.0)
    """What the host's clock said last."""
    sequences: dict[SequenceId, TokenSequence] = field(init=False, default_factory=dict)
    jobs: list[Job] = field(init=False, default_factory=list)
    draining: bool = field(init=False, default=False)
    """Nothing new is admitted; what is here is served."""
    why: WhyLog | None = field(init=False, default=None)
    """Where a host wants to know what happened; simulations do not."""
    sampler: Sampler | None = field(init=False, default=None)
    """Where a host wants to know what more room would buy."""
    _events: dict[BlockHash, bool] = field(init=False, default_factory=dict)
    _last_id: int = field(init=False, default=0)
    _learns: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.table = BlockTable(self.n_blocks)
        self.ledger = HotLedger(self.options.block_bytes)
        self.sources = Sources(self.options.block_bytes)
        self.leaving_age = LeavingAge(self.n_blocks)
        # No more are ever resident; what falls off is seen to when it leaves, or is found to have no second.
        self.uncopied = deque(maxlen=self.n_blocks)
        self._learns = isinstance(self.options.policy(self.n_blocks), RequestAware)

    def set_policies(
        self, policies: Mapping[TenantId, TenantPolicy], shares: Mapping[TenantId, Share] | None = None
    ) -> None:
        """New bounds of all tenants; what a reservation has seen of its tenant stays as long as there is one.

        shares: what this pool was lent of totals; None where it is the only one there is.
        """
        self.ledger.set_policies(policies, shares)
        self.two_copies = two_copies(policies)
        promised = {t: n for t in policies if (n := self.ledger.reserved_bytes(t) // self.options.block_bytes)}
        for tenant in self.promises.keys() - promised:
            del self.promises[tenant]
        for tenant, n_blocks in promised.items():
            promise = self.promises.setdefault(tenant, Promise(n_blocks))
            promise.resize(n_blocks)

    # Ids, leases, counters.

    def next_id(self) -> int:
        """A number never given before; tickets and lease ids share it."""
        self._last_id += 1
        return self._last_id

    def lease(self, lease_id: LeaseId, *, connection: int) -> Lease:
        """The lease, if it is this connection's; OwnershipError when it ended or never was."""
        lease = self.leases.get(lease_id)
        if lease is None or lease.connection != connection:
            raise OwnershipError(f"lease {lease_id} is not held by this connection")
        return lease

    def count(self, tenant: TenantId) -> TenantCounters:
        """Of the tenant; of all the others together for who comes when many are counted and has no policy.

        Not where unnamed tenants have totals: what each was refused there says how much it is to be lent.
        """
        counters = self.counters.get(tenant)
        if counters is None:
            is_known = self.ledger.is_named(tenant) or self.ledger.policy(tenant).has_total
            if len(self.counters) >= COUNTED_MAX and not is_known:
                tenant = TenantId(OTHER)
            counters = self.counters.setdefault(tenant, TenantCounters())
        return counters

    # What is here.

    def resident_run(self, hashes: Sequence[BlockHash], scope_id: bytes) -> list[BlockId]:
        """The longest gap-free run of resident blocks of this scope (I4, I6).

        A chain's hashes name its scope, but hashes come from engines: who names another scope's gets nothing by it.
        """
        run = self.index.match(hashes)
        records = self.table.records
        for n_own, block_id in enumerate(run):
            if records[block_id].scope_id != scope_id:
                return run[:n_own]
        return run

    # How blocks come and go.

    def become_filling(
        self, block_hash: BlockHash, *, scope_id: bytes, tenant: TenantId, parent: BlockId, depth: int
    ) -> BlockId | None:
        """Take a free slot for this identity and charge it; None when no slot is free."""
        block_id = self.table.allocate(block_hash, scope_id=scope_id, tenant=tenant, parent=parent, depth=depth)
        if block_id is not None:
            self.filling[block_hash] = block_id
            self.ledger.charge(tenant)
        return block_id

    def name_filling(self, block_id: BlockId, block_hash: BlockHash, *, parent: BlockId, depth: int) -> None:
        """A sequence's block is full: it is content of this name from now on, and about to become ready."""
        del self.filling[self.table[block_id].block_hash]
        self.table.rename(block_id, block_hash, parent=parent, depth=depth)
        self.filling[block_hash] = block_id

    def unname_filling(self, block_id: BlockId, name: BlockHash) -> None:
        """What is written into it will never be content: a load let go of it while a mover is still at it."""
        del self.filling[self.table[block_id].block_hash]
        self.table.unname(block_id, name)
        self.filling[name] = block_id

    def become_ready(self, block_id: BlockId, checksum: bytes | None, *, origin: Source | None = None) -> None:
        """A filled block becomes matchable, known to its tenant's policy, and announced.

        origin: which place it came from, and so has it too; HOT for an earlier life of this pool, None for an engine.
        """
        record = self.table.records[block_id]
        block_hash = record.block_hash
        self.table.commit(block_id, checksum)
        del self.filling[block_hash]
        self.index.add(block_hash, block_id)
        self.n_used += 1
        self.n_promised += 1
        record.used_at, record.promised_at = self.n_used, self.n_promised
        self.tell_policy(block_id, record, record.tenant)
        self._events[block_hash] = True
        if origin is Source.REDIS:
            self.table.note_copied(block_id)
        elif self.options.lower_tier and (
            self.options.demote == "always" or (origin is None and self.two_copies.asked_by(record.tenant))
        ):
            self.uncopied.append((block_id, record.block_hash))

    def count_uses(self, tenant: TenantId, n_blocks: int) -> None:
        """Blocks that the tenant found."""
        self.n_used += n_blocks
        if tenant in self.promises:
            self.n_promised += n_blocks

    def drop_filling(self, block_id: BlockId) -> None:
        """Give back a block that will not be finished."""
        record = self.table[block_id]
        del self.filling[record.block_hash]
        self.ledger.release(record.tenant)
        self.table.abort(block_id)

    def start_leaving(self, block_id: BlockId, ticket: Ticket) -> None:
        """A copy of it is being made: no victim for the policy any more, but still matchable."""
        self.policy_of(self.table[block_id].tenant).on_remove(block_id)
        self.table.start_leaving(block_id, ticket)
        self.leaving[ticket] = block_id

    def come_back(self, block_id: BlockId) -> None:
        """A hit while leaving: the copy under way may still end up below, the block stays.

        It is pinned until that copy has ended: a mover reads the slot whenever it gets to the job, and whatever
        lay there by then would be stored under this block's hash.
        """
        record = self.table[block_id]
        ticket = record.ticket
        del self.leaving[ticket]
        self.table.hit_while_leaving(block_id)
        self.table.pin(block_id)
        self.recalled[ticket] = block_id
        self.tell_policy(block_id, record, record.tenant)
        if self.why is not None:
            self.why.note("recalled", record.block_hash, record.tenant, hits=record.hits)

    def part(self, block_id: BlockId, tenant: TenantId) -> None:
        """One of several tenants lets go of a block; the others take its part over."""
        record = self.table[block_id]
        before = record.tenants
        self.policies[tenant].on_remove(block_id)
        self.table.part(block_id, tenant)
        self.ledger.recharge(before, record.tenants)

    def forget(self, block_id: BlockId, left: CopyDone | None = None) -> None:
        """Take a block that one tenant uses out of everything; ``left`` is what ended its copy, if one was made."""
        record = self.table.records[block_id]
        tenant, block_hash = record.tenant, record.block_hash
        if left is None:
            self.policies[tenant].on_remove(block_id)
            self.table.evict(block_id)
        else:
            self.table.finish_leaving(block_id, left.ticket, copied=left.copied)
            if not left.copied:
                self.table.evict(block_id)
        self.index.remove(block_hash, block_id)
        self.ledger.release(tenant)
        self.count(tenant).evicted += 1
        self._events[block_hash] = False

    def policy_of(self, tenant: TenantId) -> EvictionPolicy:
        policy = self.policies.get(tenant)
        if policy is None:
            if len(self.policies) >= POLICIES_MAX:
                self._drop_idle_policies()
            policy = self.policies[tenant] = self.options.policy(self.n_blocks)
            if self._learns:
                for learner in self.policies.values():
                    cast(RequestAware, learner).share_memory(len(self.policies))
        return policy

    def _drop_idle_policies(self) -> None:
        """Half of those of tenants that hold nothing, if these are many: with them goes what they have learned. First
        of tenants without a policy of their own, and the older ones before others."""
        busy = {lease.tenant for lease in self.leases.values()} | {tenant for tenant, _ in self.ledger.tenants()}
        idle = sorted((tenant for tenant in self.policies if tenant not in busy), key=self.ledger.is_named)
        for tenant in idle[: len(idle) // 2] if len(idle) >= POLICIES_MAX else ():
            del self.policies[tenant]

    def learner_of(self, tenant: TenantId) -> RequestAware | None:
        """The tenant's policy, where policies learn from requests."""
        if not self._learns:
            return None
        return cast(RequestAware, self.policy_of(tenant))  # asking it each time would cost more than some policies

    def tell_policy(self, block_id: BlockId, record: BlockRecord, tenant: TenantId) -> None:
        """A tenant uses a matchable block from now on."""
        tokens = self.options.block_tokens
        self.policy_of(tenant).on_insert(
            block_id,
            key=record.block_hash,
            parent=record.parent,
            recompute_cost=tokens * (1.0 + record.depth * tokens / ATTENTION_EVEN_TOKENS),
        )

    # What the host takes away.

    def drain_jobs(self) -> list[Job]:
        jobs, self.jobs = self.jobs, []
        return jobs

    def drain_events(self) -> DirectoryEvents:
        events, self._events = self._events, {}
        return DirectoryEvents(
            stored=tuple(block_hash for block_hash, here in events.items() if here),
            removed=tuple(block_hash for block_hash, here in events.items() if not here),
        )

    def resident_hashes(self) -> list[BlockHash]:
        """All that is matchable now, to announce again after a rejoin."""
        return list(self.index)

    def resident(self) -> Iterable[tuple[BlockId, BlockRecord]]:
        return ((block_id, self.table[block_id]) for _, block_id in self.index.items())

    def tenant_blocks(self) -> Iterator[tuple[TenantId, int]]:
        for tenant, _ in self.ledger.tenants():
            yield tenant, self.ledger.used_blocks(tenant)

    def blocks_in(self, state: BlockState) -> int:
        return self.table.count(state)
