"""Random steps on a core, its loads and its copies, against a naive model of what may be matchable.

The model knows nothing of slots: it remembers which hashes were ever made whole, by a commit or by a fetch that
brought them, and which are being filled now. Whatever the core answers must be explainable by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.core.builders import (
    BLOCK_BYTES,
    BLUE,
    PEER,
    RED,
    REDIS,
    SCOPE,
    HandSeam,
    World,
    chain,
    checksum,
)
from tiered.blocks.state import BlockState
from tiered.core.allocate import allocate
from tiered.core.commit import abort, commit
from tiered.core.invariants import check_core
from tiered.core.lease import Lease
from tiered.core.lend import lend
from tiered.core.load_op import LoadOp
from tiered.core.promote import detach, start_load
from tiered.core.pump import pump, take
from tiered.core.release import drop_connection, expire, release
from tiered.eviction.registry import POLICIES
from tiered.jobs import CopyDone, FetchDone
from tiered.types import BlockHash

TENANTS = (RED, BLUE)
TRUNK = chain("trunk", 4)
PROMPTS: list[list[BlockHash]] = [
    TRUNK + chain("left", 4, scope=TRUNK[-1]),
    TRUNK + chain("right", 3, scope=TRUNK[-1]),
    TRUNK[:2] + chain("early", 3, scope=TRUNK[1]),
    chain("alone", 2),
    chain("long", 14),
]
N_BLOCKS = 11
ORIGINS = st.sampled_from([[REDIS], [PEER, REDIS], [PEER], []])
pick = st.integers(0, 1 << 16)


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(N_BLOCKS)
        self.matches: list[Lease] = []
        self.saves: list[Lease] = []
        self.ops: list[tuple[LoadOp, Lease]] = []
        self.ever_whole: set[BlockHash] = set()
        self.stale: list[Any] = []

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        demote=st.sampled_from(["evicted", "reused", "always", "never"]),
        free_target=st.integers(0, 3),
        leaving_max=st.integers(1, 6),
        room=st.sampled_from([100, 100, 100, 5, 2, 1, 0]),
        saved=st.lists(st.tuples(st.sampled_from(PROMPTS), st.sampled_from(TENANTS)), max_size=4),
    )
    def begin(
        self, policy: str, demote: str, free_target: int, leaving_max: int, room: int, saved: list[Any]
    ) -> None:
        self.world = World(
            N_BLOCKS,
            policy=policy,
            demote=demote,
            free_target_blocks=free_target,
            leaving_max=leaving_max,
            match_lease_s=10.0,
        )
        self.world.seam = HandSeam(room=room)
        for prompt, tenant in saved:
            self.save(prompt, tenant, 1, 8, 14, True, True)

    @property
    def core(self) -> Any:
        return self.world.core

    def held(self, leases: Sequence[Lease]) -> list[Lease]:
        return [lease for lease in leases if lease.lease_id in self.core.leases]

    # Requests.

    @rule(
        prompt=st.sampled_from(PROMPTS),
        tenant=st.sampled_from(TENANTS),
        connection=st.integers(1, 2),
        asked=st.integers(0, 70),
        below=ORIGINS,
        n_below=st.sampled_from([14, 14, 5, 2]),
        loads=st.booleans(),
    )
    def match(
        self,
        prompt: list[BlockHash],
        tenant: Any,
        connection: int,
        asked: int,
        below: list[Any],
        n_below: int,
        loads: bool,
    ) -> None:
        origins = dict.fromkeys(range(n_below), below)
        lease = self.world.match(prompt, tenant=tenant, connection=connection, asked_tokens=asked, below=origins)
        self.check_prefix(lease)
        assert all(h not in self.core.filling for h in prompt[: len(lease.pinned)])
        assert len(lease.pinned) == len(prompt) or self.core.index.find(prompt[len(lease.pinned)]) is None
        self.matches.append(lease)
        if loads:
            self.start_load(lease)

    @precondition(lambda self: self.held(self.matches))
    @rule(which=pick)
    def load(self, which: int) -> None:
        held = self.held(self.matches)
        self.start_load(held[which % len(held)])

    def start_load(self, lease: Lease) -> None:
        self.ops.append((start_load(self.core, lease), lease))
        self.turn()

    @precondition(lambda self: any(lease.lease_id in self.core.leases for op, lease in self.ops if not op.done))
    @rule(which=pick)
    def load_again(self, which: int) -> None:
        """The same lease, while an earlier load of it is under way."""
        leases = self.held([lease for op, lease in self.ops if not op.done])
        self.start_load(leases[which % len(leases)])

    @precondition(lambda self: self.core.leaving)
    @rule(which=pick)
    def call_back(self, which: int) -> None:
        """A hit on what is leaving."""
        leaving = list(self.core.leaving.values())
        block_hash = self.core.table[leaving[which % len(leaving)]].block_hash
        self.match(next(p for p in PROMPTS if block_hash in p), RED, 1, 0, [], 0, False)

    @precondition(lambda self: any(not op.done for op, _ in self.ops))
    @rule(which=pick)
    def give_up_waiting(self, which: int) -> None:
        waiting = [op for op, _ in self.ops if not op.done]
        detach(self.core, waiting[which % len(waiting)])

    @rule(
        prompt=st.sampled_from(PROMPTS),
        tenant=st.sampled_from(TENANTS),
        connection=st.integers(1, 2),
        n_slots=st.integers(0, 14),
        n_whole=st.integers(0, 14),
        force=st.booleans(),
        ends=st.booleans(),
    )
    def save(
        self,
        prompt: list[BlockHash],
        tenant: Any,
        connection: int,
        n_slots: int,
        n_whole: int,
        force: bool,
        ends: bool,
    ) -> None:
        """Begin to write a prompt, write some of it, and perhaps end there."""
        lease = self.world.open(prompt, tenant=tenant, connection=connection)
        self.saves.append(lease)
        self.allocate_for(lease, n_slots, force)
        self.commit_for(lease, n_whole)
        if ends:
            release(self.core, lease, used_tokens=0)

    @precondition(lambda self: self.held(self.saves))
    @rule(which=pick, n_blocks_max=st.integers(0, 14), force=st.booleans())
    def allocate(self, which: int, n_blocks_max: int, force: bool) -> None:
        held = self.held(self.saves)
        self.allocate_for(held[which % len(held)], n_blocks_max, force)

    def allocate_for(self, lease: Lease, n_blocks_max: int, force: bool) -> None:
        if n_blocks_max % 2:
            grant = allocate(self.core, lease, n_blocks_max=n_blocks_max, force=force)
        else:
            grant = take(self.core, self.world.seam, lease, n_blocks_max=n_blocks_max, force=force)
        if grant.shortfall == "soon":
            assert grant.block_ids or self.core.leaving or self.core.recalled
        hashes = [self.core.table[b].block_hash for b in grant.block_ids]
        assert hashes == list(lease.hashes[grant.first_index : grant.first_index + len(hashes)])
        assert all(self.core.index.find(h) is None for h in hashes)

    def commit_for(self, lease: Lease, n_blocks: int) -> None:
        hashes = [self.core.table[b].block_hash for b in lease.filling[:n_blocks]]
        commit(self.core, lease, [checksum(h) for h in hashes])
        self.ever_whole.update(hashes)
        self.turn()

    @precondition(lambda self: any(lease.filling for lease in self.held(self.saves)))
    @rule(which=pick, n=st.integers(0, 14))
    def commit(self, which: int, n: int) -> None:
        writing = [lease for lease in self.held(self.saves) if lease.filling]
        self.commit_for(writing[which % len(writing)], n)

    @precondition(lambda self: self.held(self.saves))
    @rule(which=pick)
    def abort(self, which: int) -> None:
        held = self.held(self.saves)
        abort(self.core, held[which % len(held)])

    @precondition(lambda self: self.core.leases)
    @rule(which=pick, used=st.integers(-9, 99))
    def release(self, which: int, used: int) -> None:
        leases = list(self.core.leases.values())
        lease = leases[which % len(leases)]
        self.check_prefix(lease)
        release(self.core, lease, used_tokens=used)

    @rule(prompt=st.sampled_from(PROMPTS), which=st.lists(st.integers(0, 13), max_size=4, unique=True))
    def lend(self, prompt: list[BlockHash], which: list[int]) -> None:
        asked = [prompt[i] for i in which if i < len(prompt)]
        lease, indices = lend(self.core, asked, scope_id=SCOPE, connection=0, now=self.world.now, lease_s=5.0)
        assert [self.core.table[b].block_hash for b in lease.pinned] == [asked[i] for i in indices]

    # What ends by itself.

    @precondition(lambda self: len(self.core.leases) > 2)
    @rule(connection=st.integers(1, 2))
    def drop_connection(self, connection: int) -> None:
        drop_connection(self.core, connection, now=self.world.now)

    @rule(after=st.sampled_from([0.1, 1.0, 5.0, 12.0]))
    def expire(self, after: float) -> None:
        self.world.now += after
        writing = {lease.lease_id for lease in self.core.leases.values() if lease.filling}
        expire(self.core, self.world.now)
        assert writing <= set(self.core.leases)

    @rule(
        tenant=st.sampled_from(TENANTS),
        limit=st.none() | st.integers(0, N_BLOCKS),
        reserved=st.integers(0, 4),
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        over_quota=st.sampled_from(["evict_own", "refuse"]),
    )
    def change_policy(self, tenant: Any, limit: int | None, reserved: int, weight: float, over_quota: str) -> None:
        reserved = reserved if limit is None else min(reserved, limit)
        self.world.limit(tenant, limit, hot_reserved_blocks=reserved, weight=weight, over_quota=over_quota)

    @rule(tokens_per_s=st.sampled_from([10.0, 1e4]))
    def engine_reports(self, tokens_per_s: float) -> None:
        """From then on what is below is planned, and slow sources are probed."""
        self.core.prefill.note(100, 100 / tokens_per_s)

    # Movers.

    @rule()
    def turn(self) -> None:
        pump(self.core, self.world.seam)

    @precondition(lambda self: self.world.seam.fetches)
    @rule(
        which=pick,
        good=st.just(-1) | st.integers(0, (1 << 14) - 1),
        took_s=st.sampled_from([0.0, 0.001, 0.1, 5.0]),
        pumped=st.booleans(),
    )
    def answer(self, which: int, good: int, took_s: float, pumped: bool) -> None:
        """Any job, with any part of it good; the host may be slow to look."""
        job = self.world.seam.fetches.pop(which % len(self.world.seam.fetches))
        for block_id, block_hash in zip(job.block_ids, job.hashes, strict=True):
            record = self.core.table[block_id]
            is_stray = block_id in self.core.strays.get(job.ticket, ())
            assert record.state is BlockState.FILLING, "a slot left its mover"
            assert is_stray or record.block_hash == block_hash, "a slot holds another block"
        here = [h if good >> i & 1 else None for i, h in enumerate(job.hashes)]
        self.ever_whole.update(h for h in here if h is not None)
        done = FetchDone(job.ticket, tuple(h and checksum(h) for h in here), took_s)
        self.finish(done, pumped)

    @precondition(lambda self: self.world.seam.copies)
    @rule(which=pick, copied=st.booleans(), pumped=st.booleans())
    def copy(self, which: int, copied: bool, pumped: bool) -> None:
        job = self.world.seam.copies.pop(which % len(self.world.seam.copies))
        assert self.core.table[job.block_id].block_hash == job.block_hash, "a block left while it was copied"
        self.finish(CopyDone(job.ticket, copied=copied), pumped)

    @precondition(lambda self: self.stale)
    @rule(which=pick)
    def answer_again(self, which: int) -> None:
        self.world.seam.done.append(self.stale[which % len(self.stale)])
        self.turn()

    def finish(self, done: Any, pumped: bool) -> None:
        self.world.seam.done.append(done)
        self.stale.append(done)
        if pumped:
            self.turn()

    # What must hold.

    def check_prefix(self, lease: Lease) -> None:
        """A lease of a match pins the right content from the first hash on, without a gap."""
        if lease in self.matches:
            hashes = [self.core.table[b].block_hash for b in lease.pinned]
            assert hashes == list(lease.hashes[: len(hashes)])
            assert len(lease.sources) == len(lease.pinned)

    @invariant()
    def every_rule_holds(self) -> None:
        check_core(self.core)

    @invariant()
    def only_what_was_made_whole_is_matchable(self) -> None:
        for block_hash, block_id in self.core.index.items():
            record = self.core.table[block_id]
            assert block_hash in self.ever_whole
            assert record.checksum == checksum(block_hash)
            assert record.state is not BlockState.FILLING

    @invariant()
    def leases_hold_prefixes(self) -> None:
        for lease in self.held(self.matches):
            self.check_prefix(lease)

    @invariant()
    def loads_own_their_slots(self) -> None:
        for op in self.core.loads.values():
            assert not op.done
            assert sorted(op.slots) == list(range(op.next_index, op.slots_end))
            answered = {i for indices in op.outstanding.values() for i in indices}
            assert answered | set(op.arrived) <= set(op.slots)
        slots = [b for op in self.core.loads.values() for b in op.slots.values()]
        engines = [b for lease in self.core.leases.values() for b in lease.filling]
        strays = [b for block_ids in self.core.strays.values() for b in block_ids]
        assert sorted(slots + engines + strays) == sorted(self.core.filling.values())

    @invariant()
    def copies_under_way_are_bounded(self) -> None:
        assert len(self.core.leaving) + len(self.core.recalled) <= self.core.options.leaving_max

    @invariant()
    def the_books_add_up(self) -> None:
        for counters in self.core.counters.values():
            tokens = counters.tokens
            assert tokens.asked == tokens.hot + tokens.peer + tokens.redis + tokens.missed
            assert counters.demoted <= counters.evicted

    def teardown(self) -> None:
        """All ends: connections, time, movers. Nothing may be left but what is resident."""
        for connection in range(3):
            drop_connection(self.core, connection, now=self.world.now)
        seam, core = self.world.seam, self.core
        for _ in range(1_000):
            self.turn()
            if not seam.fetches and not seam.copies:
                break
            seam.done.extend(FetchDone(job.ticket, (None,) * len(job.hashes)) for job in seam.fetches)
            seam.done.extend(CopyDone(job.ticket, copied=True) for job in seam.copies)
            seam.fetches.clear()
            seam.copies.clear()
        check_core(core)
        assert core.leases == core.loads == core.filling == core.fetching == core.leaving == core.recalled == {}
        assert core.strays == {}
        assert sum(record.pins for record in core.table.records) == 0
        resident = core.blocks_in(BlockState.READY)
        assert resident + core.blocks_in(BlockState.FREE) == N_BLOCKS
        assert core.ledger.total_bytes() == resident * BLOCK_BYTES
        for tenant in TENANTS:
            assert core.ledger.excess_bytes(tenant) == 0 or any(
                record.children for record in core.table.records if record.tenant == tenant
            )
        announced: dict[BlockHash, bool] = core._events
        assert {h for h, here in announced.items() if here} == set(core.index)


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
