"""Random steps of many sequences, saves and matches, against lists of tokens and a memory that remembers who wrote.

The memory of the model holds, per slot, the whole prefix whose keys and values were written there. So a slot that is
written under somebody who still reads it, a copy made too late, or a block that is shared before it is whole shows
up as a wrong prefix.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.core.builders import BLOCK_BYTES, BLOCK_TOKENS, BLUE, RED, SCOPE, HandSeam, World, checksum
from tiered.blocks.state import BlockState
from tiered.core.allocate import allocate
from tiered.core.commit import commit
from tiered.core.invariants import check_core
from tiered.core.lease import Lease
from tiered.core.pump import grow, pump
from tiered.core.release import release
from tiered.core.sequences import (
    append,
    copied,
    drop,
    drop_sequences,
    find_sequence,
    fork,
    open_sequence,
    share,
    truncate,
    written,
)
from tiered.errors import OutOfBlocks, OwnershipError
from tiered.eviction.registry import POLICIES
from tiered.hashing.chain import chain_hashes
from tiered.jobs import CopyDone
from tiered.sequence.sequence import TokenSequence
from tiered.types import BlockHash, BlockId, TenantId

N_BLOCKS = 9
pick = st.integers(0, 1 << 16)

TEXTS = ([1] * 64, [1] * 6 + [2] * 58, [1, 2] * 32)
"""What sequences go on with: they part in an open block, or at once, and else have the same prefixes."""

parts = st.tuples(st.sampled_from(TEXTS), st.integers(0, 14))


def continued(tokens: list[int], part: tuple[list[int], int]) -> list[int]:
    text, n_tokens = part
    return text[len(tokens) : len(tokens) + n_tokens]


@dataclass
class Twin:
    """A sequence and what the model says of it."""

    real: TokenSequence
    tokens: list[int] = field(default_factory=list)
    n_written: int = 0


class SequenceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(N_BLOCKS)
        self.twins: list[Twin] = []
        self.leases: list[Lease] = []
        self.memory: dict[tuple[BlockId, int], tuple[int, ...]] = {}
        self.prefixes: dict[BlockHash, tuple[int, ...]] = {}

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        lower_tier=st.booleans(),
        leaving_max=st.integers(1, 4),
        room=st.sampled_from([100, 100, 2, 0]),
        opened=st.lists(st.tuples(st.sampled_from([RED, BLUE]), st.integers(1, 2), parts), min_size=1, max_size=4),
    )
    def begin(
        self, policy: str, lower_tier: bool, leaving_max: int, room: int, opened: list[tuple[TenantId, int, Any]]
    ) -> None:
        self.world = World(N_BLOCKS, policy=policy, lower_tier=lower_tier, leaving_max=leaving_max)
        self.world.seam = HandSeam(room=room)
        for tenant, connection, part in opened:
            self.open(tenant, connection, is_private=False)
            self.append(len(self.twins) - 1, part, True, True)

    @property
    def core(self) -> Any:
        return self.world.core

    def hashes(self, tokens: list[int]) -> list[BlockHash]:
        hashes = chain_hashes(SCOPE, tokens, block_tokens=BLOCK_TOKENS)
        for index, block_hash in enumerate(hashes):
            self.prefixes[block_hash] = tuple(tokens[: (index + 1) * BLOCK_TOKENS])
        return hashes

    def state_of(self, sequence: TokenSequence) -> tuple[Any, ...]:
        return (
            list(sequence.tokens),
            list(sequence.hashes),
            list(sequence.block_ids),
            sequence.n_ready,
            sequence.n_written,
            sequence.copy,
        )

    # Sequences.

    @precondition(lambda self: len(self.twins) < 8)
    @rule(tenant=st.sampled_from([RED, BLUE]), connection=st.integers(1, 2), is_private=st.booleans())
    def open(self, tenant: TenantId, connection: int, is_private: bool = False) -> None:
        opened = open_sequence(self.core, connection=connection, tenant=tenant, scope_id=SCOPE, is_private=is_private)
        self.twins.append(Twin(opened))

    @precondition(lambda self: self.twins)
    @rule(which=pick, part=parts, force=st.booleans(), finishes=st.sampled_from([True, True, False]))
    def append(self, which: int, part: tuple[list[int], int], force: bool, finishes: bool) -> None:
        twin = self.twins[which % len(self.twins)]
        tokens = continued(twin.tokens, part)
        sequence, before = twin.real, self.state_of(twin.real)
        extension = sequence.extension(tokens)
        after = twin.tokens + tokens
        if sequence.n_unwritten or sequence.copy is not None:
            with pytest.raises(ValueError, match="not written yet"):
                append(self.core, sequence, extension, force=force)
            assert self.state_of(sequence) == before
            return
        n_resident = len(self.core.index.match(self.hashes(after)))
        try:
            appended = grow(self.core, self.world.seam, sequence, extension, force=force)
        except OutOfBlocks as error:
            refused = error
        else:
            refused = None
        if refused is not None:
            assert self.state_of(sequence) == before
            in_use = any(s.block_ids for s in self.core.sequences.values())
            in_use |= any(lease.pinned or lease.filling for lease in self.core.leases.values())
            assert bool(refused.holders) >= in_use
            assert all(phrase in str(refused) for phrase in refused.holders)
            return
        if appended is None:
            assert self.core.leaving or self.core.recalled
            assert self.state_of(sequence) == before
            return
        assert appended.end_token == len(after)
        if tokens:
            assert appended.first_token >= max(len(twin.tokens), min(n_resident * BLOCK_TOKENS, len(after)))
        assert set(appended.allocated) <= set(sequence.block_ids)
        assert not set(appended.allocated) & set(appended.reused)
        twin.tokens, twin.n_written = after, appended.first_token
        if finishes:
            self.finish(twin)

    def finish(self, twin: Twin) -> None:
        if twin.real.copy is not None:
            self.copy_for(twin)
        self.write_for(twin, len(twin.tokens) - twin.n_written)

    def copy_for(self, twin: Twin) -> None:
        copy = twin.real.copy
        assert copy is not None
        for offset in range(copy.n_tokens):
            self.memory[copy.target, offset] = self.memory[copy.source, offset]
        copied(self.core, twin.real)

    @precondition(lambda self: any(twin.real.copy is not None for twin in self.twins))
    @rule(which=pick)
    def make_a_copy(self, which: int) -> None:
        copying = [twin for twin in self.twins if twin.real.copy is not None]
        self.copy_for(copying[which % len(copying)])

    @precondition(lambda self: self.twins)
    @rule(which=pick, n_tokens=st.integers(-1, 14))
    def write(self, which: int, n_tokens: int) -> None:
        twin = self.twins[which % len(self.twins)]
        before = self.state_of(twin.real)
        if not 0 <= n_tokens <= len(twin.tokens) - twin.n_written or (n_tokens and twin.real.copy is not None):
            with pytest.raises(ValueError):
                written(self.core, twin.real, n_tokens, [])
            assert self.state_of(twin.real) == before
            return
        self.write_for(twin, n_tokens)

    def write_for(self, twin: Twin, n_tokens: int) -> None:
        first, end = twin.n_written, twin.n_written + n_tokens
        for position, slot in zip(range(first, end), twin.real.slots(first, end), strict=True):
            self.memory[BlockId(slot // BLOCK_TOKENS), slot % BLOCK_TOKENS] = tuple(twin.tokens[: position + 1])
        n_whole = len(twin.real.completed_by(n_tokens))
        first_block = first // BLOCK_TOKENS
        sums = [checksum(h) for h in self.hashes(twin.tokens)[first_block : first_block + n_whole]]
        written(self.core, twin.real, n_tokens, sums)
        twin.n_written = end

    @precondition(lambda self: self.twins)
    @rule(which=pick, n_tokens=st.integers(-1, 14))
    def share(self, which: int, n_tokens: int) -> None:
        twin = self.twins[which % len(self.twins)]
        before = self.state_of(twin.real)
        if not 0 <= n_tokens <= twin.n_written:
            with pytest.raises(ValueError, match="that are written"):
                share(self.core, twin.real, n_tokens)
            assert self.state_of(twin.real) == before
            return
        n_before = twin.real.n_ready
        n_shared = share(self.core, twin.real, n_tokens)
        assert twin.real.n_ready == n_before + n_shared <= max(n_before, n_tokens // BLOCK_TOKENS)

    @precondition(lambda self: 0 < len(self.twins) < 8)
    @rule(which=pick)
    def fork(self, which: int) -> None:
        twin = self.twins[which % len(self.twins)]
        if twin.real.n_unwritten or twin.real.copy is not None:
            with pytest.raises(ValueError, match="not written yet"):
                fork(self.core, twin.real)
            return
        n_free = self.core.blocks_in(BlockState.FREE)
        self.twins.append(Twin(fork(self.core, twin.real), list(twin.tokens), twin.n_written))
        assert self.core.blocks_in(BlockState.FREE) == n_free, "a fork takes no block"

    @precondition(lambda self: 0 < len(self.twins) < 8)
    @rule(which=pick, texts=st.permutations(TEXTS), n_tokens=st.integers(1, 6), finishes=st.booleans())
    def branch(self, which: int, texts: list[list[int]], n_tokens: int, finishes: bool) -> None:
        """Fork, and let both go on, each its own way."""
        index = which % len(self.twins)
        n_before = len(self.twins)
        self.fork(index)
        if len(self.twins) > n_before:
            self.append(index, (texts[0], n_tokens), True, finishes)
            self.append(n_before, (texts[1], n_tokens), True, finishes)

    @precondition(lambda self: self.twins)
    @rule(which=pick, back=st.integers(-1, 12), part=parts)
    def truncate_and_go_on(self, which: int, back: int, part: Any) -> None:
        self.truncate(which, back)
        self.append(which, part, True, True)

    @precondition(lambda self: self.twins)
    @rule(which=pick, back=st.integers(-1, 12))
    def truncate(self, which: int, back: int) -> None:
        twin = self.twins[which % len(self.twins)]
        n_tokens = len(twin.tokens) - back
        if not 0 <= n_tokens <= len(twin.tokens):
            before = self.state_of(twin.real)
            with pytest.raises(ValueError, match="is not between 0 and"):
                truncate(self.core, twin.real, n_tokens)
            assert self.state_of(twin.real) == before
            return
        truncate(self.core, twin.real, n_tokens)
        del twin.tokens[n_tokens:]
        twin.n_written = min(twin.n_written, n_tokens)

    @precondition(lambda self: len(self.twins) > 3)
    @rule(which=pick)
    def drop(self, which: int) -> None:
        real = self.twins.pop(which % len(self.twins)).real
        with pytest.raises(OwnershipError):
            find_sequence(self.core, real.sequence_id, connection=3 - real.connection)
        assert find_sequence(self.core, real.sequence_id, connection=real.connection) is real
        drop(self.core, real)
        with pytest.raises(OwnershipError):
            drop(self.core, real)
        with pytest.raises(OwnershipError):
            find_sequence(self.core, real.sequence_id, connection=real.connection)

    @precondition(lambda self: len(self.twins) > 4)
    @rule(connection=st.integers(1, 2))
    def lose_the_connection(self, connection: int) -> None:
        gone = [twin for twin in self.twins if twin.real.connection == connection]
        assert drop_sequences(self.core, connection) == len(gone)
        self.twins = [twin for twin in self.twins if twin.real.connection != connection]

    # Others, who save and match the same prompts through leases.

    @rule(
        part=parts,
        tenant=st.sampled_from([RED, BLUE]),
        n_blocks=st.integers(1, 3),
        n_whole=st.integers(0, 3),
        ends=st.booleans(),
    )
    def save(self, part: tuple[list[int], int], tenant: TenantId, n_blocks: int, n_whole: int, ends: bool) -> None:
        lease = self.world.open(self.hashes(continued([], part)), tenant=tenant)
        self.leases.append(lease)
        allocate(self.core, lease, n_blocks_max=n_blocks, force=True)
        self.commit_for(lease, n_whole)
        if ends:
            self.end(lease)

    def commit_for(self, lease: Lease, n_whole: int) -> None:
        whole = lease.filling[:n_whole]
        hashes = [self.core.table[block_id].block_hash for block_id in whole]
        for block_id, block_hash in zip(whole, hashes, strict=True):
            prefix = self.prefixes[block_hash]
            for offset in range(BLOCK_TOKENS):
                self.memory[block_id, offset] = prefix[: len(prefix) - BLOCK_TOKENS + offset + 1]
        commit(self.core, lease, [checksum(block_hash) for block_hash in hashes])

    @precondition(lambda self: any(lease.filling for lease in self.leases))
    @rule(which=pick, n_whole=st.integers(1, 3))
    def finish_a_save(self, which: int, n_whole: int) -> None:
        writing = [lease for lease in self.leases if lease.filling]
        self.commit_for(writing[which % len(writing)], n_whole)

    @rule(part=parts, tenant=st.sampled_from([RED, BLUE]))
    def match(self, part: tuple[list[int], int], tenant: TenantId) -> None:
        self.leases.append(self.world.match(self.hashes(continued([], part)), tenant=tenant))

    @precondition(lambda self: self.leases)
    @rule(which=pick)
    def release(self, which: int) -> None:
        self.end(self.leases[which % len(self.leases)])

    def end(self, lease: Lease) -> None:
        self.leases.remove(lease)
        release(self.core, lease, used_tokens=0)

    @rule(
        tenant=st.sampled_from([RED, BLUE]),
        limit=st.none() | st.integers(0, N_BLOCKS),
        over_quota=st.sampled_from(["evict_own", "refuse"]),
    )
    def change_policy(self, tenant: TenantId, limit: int | None, over_quota: str) -> None:
        self.world.limit(tenant, limit, over_quota=over_quota)

    @precondition(lambda self: self.world.seam.copies)
    @rule(which=pick, made=st.booleans())
    def answer_a_copy(self, which: int, made: bool) -> None:
        job = self.world.seam.copies.pop(which % len(self.world.seam.copies))
        self.holds(job.block_id, self.prefixes[job.block_hash])
        self.world.seam.done.append(CopyDone(job.ticket, copied=made))
        pump(self.core, self.world.seam)

    # What must hold.

    def holds(self, block_id: BlockId, prefix: tuple[int, ...]) -> None:
        first = (len(prefix) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        for position in range(first, len(prefix)):
            there = self.memory.get((block_id, position - first))
            assert there == prefix[: position + 1], f"block {block_id} holds {there} at {position - first}"

    @invariant()
    def every_rule_holds(self) -> None:
        check_core(self.core)

    @invariant()
    def sequences_are_what_the_model_says(self) -> None:
        assert {id(t.real) for t in self.twins} == {id(s) for s in self.core.sequences.values()}
        for twin in self.twins:
            assert list(twin.real.tokens) == twin.tokens
            assert twin.real.n_written == twin.n_written
            assert twin.real.hashes == self.hashes(twin.tokens)

    @invariant()
    def every_written_token_is_where_the_block_table_says(self) -> None:
        for twin in self.twins:
            for index, block_id in enumerate(twin.real.block_ids):
                copy = twin.real.copy
                at = copy.source if copy is not None and copy.target == block_id else block_id
                end = min((index + 1) * BLOCK_TOKENS, twin.n_written)
                if end > index * BLOCK_TOKENS:
                    self.holds(at, tuple(twin.tokens[:end]))

    @invariant()
    def only_whole_blocks_are_matchable(self) -> None:
        for block_hash, block_id in self.core.index.items():
            self.holds(block_id, self.prefixes[block_hash])
            assert self.core.table[block_id].checksum == checksum(block_hash)

    def teardown(self) -> None:
        """All ends. Nothing may be left but what is resident."""
        for connection in (1, 2):
            drop_sequences(self.core, connection)
        for lease in list(self.leases):
            self.end(lease)
        seam, core = self.world.seam, self.core
        while seam.copies:
            seam.done.extend(CopyDone(job.ticket, copied=True) for job in seam.copies)
            seam.copies.clear()
            pump(core, seam)
        check_core(core)
        assert core.sequences == core.leases == core.filling == {}
        assert sum(record.pins for record in core.table.records) == 0
        resident = core.blocks_in(BlockState.READY)
        assert resident + core.blocks_in(BlockState.FREE) == N_BLOCKS
        assert core.ledger.total_bytes() == resident * BLOCK_BYTES


TestSequenceMachine = SequenceMachine.TestCase
TestSequenceMachine.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
