"""Sequences: what is shared, what is copied, who sees what when, and what is left after every kind of end."""

from __future__ import annotations

import pytest

from tests.unit.core.builders import BLOCK_TOKENS, BLUE, ENGINE, RED, SCOPE, World, checksum
from tiered.blocks.state import BlockState
from tiered.core.commit import commit
from tiered.core.invariants import check_core
from tiered.core.pump import grow
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
from tiered.errors import CapacityError, OutOfBlocks, OwnershipError
from tiered.hashing.chain import chain_hashes
from tiered.sequence.sequence import Appended, TokenSequence
from tiered.types import BlockHash, TenantId


def opened(world: World, tokens: list[int] | None = None, *, tenant: TenantId = RED) -> TokenSequence:
    """A sequence whose tokens are all written."""
    sequence = open_sequence(world.core, connection=ENGINE, tenant=tenant, scope_id=SCOPE)
    if tokens:
        finish(world, sequence, tokens)
    return sequence


def begin(world: World, sequence: TokenSequence, tokens: list[int]) -> Appended:
    appended = grow(world.core, world.seam, sequence, sequence.extension(tokens), force=True)
    check_core(world.core)
    assert appended is not None
    return appended


def finish(world: World, sequence: TokenSequence, tokens: list[int]) -> Appended:
    appended = begin(world, sequence, tokens)
    if appended.copy is not None:
        copied(world.core, sequence)
    write(world, sequence, appended.n_to_write)
    return appended


def write(world: World, sequence: TokenSequence, n_tokens: int) -> int:
    first = sequence.n_written // BLOCK_TOKENS
    n_whole = len(sequence.completed_by(n_tokens))
    sums = [checksum(block_hash) for block_hash in sequence.hashes[first : first + n_whole]]
    n_ready = written(world.core, sequence, n_tokens, sums)
    check_core(world.core)
    return n_ready


def hashes(tokens: list[int]) -> list[BlockHash]:
    return chain_hashes(SCOPE, tokens, block_tokens=BLOCK_TOKENS)


def free(world: World) -> int:
    return world.core.blocks_in(BlockState.FREE)


def test_a_block_is_matchable_only_once_all_its_tokens_are_written() -> None:
    world = World(4)
    sequence = open_sequence(world.core, connection=ENGINE, tenant=RED, scope_id=SCOPE)
    appended = begin(world, sequence, [1] * 9)
    assert (appended.first_token, appended.end_token, len(appended.allocated)) == (0, 9, 3)
    seen = []
    for n_tokens in (3, 4, 1, 1):
        write(world, sequence, n_tokens)
        seen.append(world.hot(hashes([1] * 9)))
    assert seen == [0, 1, 2, 2]
    assert world.core.table[sequence.block_ids[0]].checksum == checksum(sequence.hashes[0])


def private(world: World, tokens: list[int]) -> TokenSequence:
    sequence = open_sequence(world.core, connection=ENGINE, tenant=RED, scope_id=SCOPE, is_private=True)
    finish(world, sequence, tokens)
    return sequence


def test_a_private_sequence_is_found_as_far_as_it_was_shared_and_no_further() -> None:
    world = World(8)
    sequence = private(world, [1] * 13)
    assert world.hot(hashes([1] * 13)) == 0
    assert share(world.core, sequence, 9) == 2
    check_core(world.core)
    assert world.hot(hashes([1] * 13)) == 2
    assert world.core.table[sequence.block_ids[1]].checksum == checksum(sequence.hashes[1])
    assert share(world.core, sequence, 9) == 0
    with pytest.raises(ValueError, match="14 is not between 0 and the 13 that are written"):
        share(world.core, sequence, 14)
    drop(world.core, sequence)
    check_core(world.core)
    assert (world.hot(hashes([1] * 13)), free(world)) == (2, 6)


def test_what_a_private_sequence_reads_and_writes_is_not_counted() -> None:
    world = World(8)
    opened(world, [1] * 8)
    asked = world.core.count(RED).tokens
    hits = [record.hits for record in world.core.table.records]
    sequence = private(world, [1] * 9)
    assert sequence.n_ready == 2
    assert world.core.count(RED).tokens == asked
    assert [record.hits for record in world.core.table.records] == hits


def test_forks_of_a_private_sequence_are_private_and_share_the_same_blocks() -> None:
    world = World(8)
    trunk = private(world, [1] * 9)
    branch = fork(world.core, trunk)
    finish(world, branch, [2] * 3)
    assert world.hot(hashes([1] * 9)) == 0
    assert share(world.core, branch, 12) == 3
    assert share(world.core, trunk, 9) == 2, "they are the same blocks"
    check_core(world.core)
    assert trunk.block_ids[:2] == branch.block_ids[:2]


def test_of_two_private_sequences_with_the_same_tokens_the_second_takes_the_firsts_blocks() -> None:
    world = World(8)
    first, second = private(world, [1] * 8), private(world, [1] * 8)
    assert not set(first.block_ids) & set(second.block_ids)
    assert [share(world.core, sequence, 8) for sequence in (first, second)] == [2, 2]
    check_core(world.core)
    assert (first.block_ids, free(world)) == (second.block_ids, 6)


def test_an_append_reuses_whole_blocks_and_says_where_to_begin() -> None:
    world = World(8)
    first = opened(world, [1] * 10)
    second = opened(world)
    appended = begin(world, second, [1] * 9)
    assert appended.reused == tuple(first.block_ids[:2])
    assert (appended.first_token, appended.n_to_write, len(appended.allocated)) == (8, 1, 1)
    assert second.slots(8, 9) == [second.block_ids[2] * BLOCK_TOKENS]
    assert world.core.count(RED).tokens.asked == 19
    assert world.core.count(RED).tokens.hot == 8


def test_an_append_of_nothing_changes_nothing_not_even_a_shared_block() -> None:
    world = World(4)
    sequence = opened(world, [1] * 3)
    fork(world.core, sequence)
    appended = finish(world, sequence, [])
    assert appended == Appended(3, 3)
    assert free(world) == 3


def test_only_the_open_block_is_copied_and_only_by_those_before_the_last() -> None:
    world = World(8)
    trunk = opened(world, [1] * 6)
    left, right = fork(world.core, trunk), fork(world.core, trunk)
    assert free(world) == 6
    shared = trunk.block_ids[1]
    copies = [finish(world, sequence, [token]).copy for sequence, token in ((left, 2), (right, 3), (trunk, 4))]
    assert [copy and (copy.source, copy.n_tokens) for copy in copies] == [(shared, 2), (shared, 2), None]
    assert trunk.block_ids[1] == shared
    assert {s.block_ids[0] for s in (trunk, left, right)} == {trunk.block_ids[0]}
    assert free(world) == 4


def test_while_a_copy_is_being_made_nobody_writes_into_its_source() -> None:
    world = World(8)
    trunk = opened(world, [1] * 3)
    twin = fork(world.core, trunk)
    copy = begin(world, twin, [2]).copy
    assert copy is not None
    assert begin(world, trunk, [3]).copy is not None, "the source is still being read"
    for sequence in (trunk, twin):
        with pytest.raises(ValueError, match="make the copy"):
            written(world.core, sequence, 1, [])
        copied(world.core, sequence)
        write(world, sequence, 1)
    assert free(world) == 6
    with pytest.raises(ValueError, match="asked for no copy"):
        copied(world.core, twin)


def test_cutting_into_a_whole_block_copies_it_when_it_is_written_again() -> None:
    world = World(4)
    sequence = opened(world, [1] * 8)
    truncate(world.core, sequence, 6)
    copy = finish(world, sequence, [2, 2]).copy
    assert copy is not None
    assert copy.n_tokens == 2
    assert world.hot(hashes([1] * 8)) == 2
    assert world.hot(hashes([1] * 6 + [2] * 2)) == 2


def test_what_was_cut_off_and_comes_again_is_taken_as_it_is() -> None:
    world = World(4)
    sequence = opened(world, [1] * 8)
    before = list(sequence.block_ids)
    truncate(world.core, sequence, 5)
    appended = finish(world, sequence, [1] * 3)
    assert (appended.first_token, appended.copy, appended.allocated) == (8, None, ())
    assert sequence.block_ids == before


def test_a_block_that_somebody_else_made_whole_meanwhile_takes_the_place_of_ours() -> None:
    world = World(8)
    ours, theirs = opened(world), opened(world)
    begin(world, ours, [1] * 4)
    finish(world, theirs, [1] * 4)
    own = ours.block_ids[0]
    assert write(world, ours, 4) == 1
    assert ours.block_ids == theirs.block_ids
    assert world.core.table[own].state is BlockState.FREE


def test_a_block_that_somebody_else_is_writing_stays_private_until_that_is_whole() -> None:
    world = World(8)
    lease = world.open(hashes([1] * 4))
    world.allocate(lease)
    sequence = opened(world, [1] * 6)
    assert sequence.n_ready == 0
    assert world.hot(hashes([1] * 4)) == 0
    twin = fork(world.core, sequence)
    commit(world.core, lease, [checksum(lease.hashes[0])])
    finish(world, sequence, [1] * 2)
    assert sequence.n_ready == 2
    assert sequence.block_ids[0] == lease.pinned[0]
    assert world.hot(hashes([1] * 8)) == 2
    drop(world.core, twin)
    check_core(world.core)
    world.release(lease)


def test_a_private_block_is_shared_with_its_own_checksum_once_the_other_gave_up() -> None:
    world = World(8)
    lease = world.open(hashes([1] * 4))
    world.allocate(lease)
    sequence = opened(world, [1] * 5)
    twin = fork(world.core, sequence)
    drop(world.core, sequence)
    world.release(lease)
    finish(world, twin, [1])
    assert twin.n_ready == 1
    assert world.core.table[twin.block_ids[0]].checksum == checksum(twin.hashes[0])


def test_out_of_blocks_says_who_holds_what_and_leaves_the_sequence_as_it_was() -> None:
    world = World(4)
    mine, other = opened(world, [1] * 6), opened(world, [2] * 7, tenant=BLUE)
    before = list(mine.tokens), list(mine.block_ids)
    with pytest.raises(OutOfBlocks) as caught:
        begin(world, mine, [1] * 4)
    assert isinstance(caught.value, CapacityError)
    assert "'red' holds 2 of 4 blocks (sequences: 1, leases: 0)" in str(caught.value)
    assert "'blue' holds 2 of 4 blocks (sequences: 1, leases: 0)" in str(caught.value)
    assert (list(mine.tokens), list(mine.block_ids)) == before
    drop(world.core, other)
    assert finish(world, mine, [1] * 4).end_token == 10


def test_an_append_larger_than_the_pool_evicts_nothing_in_vain() -> None:
    world = World(4)
    world.save(hashes([1] * 8))
    with pytest.raises(OutOfBlocks, match="the pool has 4 in all"):
        begin(world, opened(world), [2] * 17)
    assert world.hot(hashes([1] * 8)) == 2


def test_at_its_quota_a_sequence_takes_the_place_of_its_tenants_own_blocks() -> None:
    world = World(8)
    world.limit(RED, 3)
    world.save(hashes([1] * 12))
    world.save(hashes([2] * 4), tenant=BLUE)
    sequence = opened(world, [3] * 9)
    assert world.used(RED) == 3
    assert world.hot(hashes([2] * 4)) == 1
    with pytest.raises(OutOfBlocks, match="at its limit"):
        begin(world, sequence, [3] * 4)


def test_a_guest_keeps_its_blocks_private_where_it_cannot_pay_for_the_prefix() -> None:
    world = World(8)
    shared = opened(world, [1] * 8, tenant=BLUE)
    world.limit(RED, 1.2)
    guest = opened(world, [1] * 8 + [2] * 4)
    check_core(world.core)
    assert guest.block_ids[:2] == shared.block_ids
    assert guest.n_ready == 2
    assert world.hot(hashes([1] * 8 + [2] * 4)) == 2


def test_dropped_blocks_that_were_whole_stay_cached_and_all_else_is_free() -> None:
    world = World(4)
    sequence = opened(world, [1] * 10)
    drop(world.core, sequence)
    check_core(world.core)
    assert world.hot(hashes([1] * 8)) == 2
    assert free(world) == 2
    with pytest.raises(OwnershipError, match="was dropped"):
        drop(world.core, sequence)


def test_a_lost_connection_gives_back_what_was_half_written_and_half_copied() -> None:
    world = World(8)
    trunk = opened(world, [1] * 3)
    twin = fork(world.core, trunk)
    begin(world, twin, [2] * 9)
    begin(world, opened(world), [3] * 5)
    assert drop_sequences(world.core, ENGINE + 1) == 0
    assert drop_sequences(world.core, ENGINE) == 3
    check_core(world.core)
    assert free(world) == 8


def test_a_sequence_belongs_to_its_connection() -> None:
    world = World(4)
    sequence = opened(world)
    assert find_sequence(world.core, sequence.sequence_id, connection=ENGINE) is sequence
    with pytest.raises(OwnershipError, match="not held by this connection"):
        find_sequence(world.core, sequence.sequence_id, connection=ENGINE + 1)


@pytest.mark.parametrize("tokens", [[-1], [1 << 32], [1.5], ["a"], "ab", [None]])
def test_tokens_that_are_no_u32_are_refused_by_name(tokens: list[int]) -> None:
    sequence = opened(World(4), [1] * 3)
    with pytest.raises(ValueError, match="tokens: every id is an integer"):
        sequence.extension(tokens)


def test_wrong_calls_are_refused_and_change_nothing() -> None:
    world = World(4)
    sequence = opened(world, [1] * 3)
    for n_tokens in (-1, 4):
        with pytest.raises(ValueError, match="is not between 0 and the 3"):
            truncate(world.core, sequence, n_tokens)
    with pytest.raises(ValueError, match=r"1 written, sequence .* waits for 0"):
        written(world.core, sequence, 1, [])
    stale = sequence.extension([2])
    begin(world, sequence, [1] * 2)
    with pytest.raises(ValueError, match=r"2 tokens of sequence .* are not written yet"):
        append(world.core, sequence, stale)
    with pytest.raises(ValueError, match="not written yet"):
        fork(world.core, sequence)
    with pytest.raises(ValueError, match="checksums: 0 for 1 blocks"):
        written(world.core, sequence, 1, [])
    write(world, sequence, 2)
    with pytest.raises(ValueError, match="made for 3 tokens"):
        append(world.core, sequence, stale)
    check_core(world.core)
    assert list(sequence.tokens) == [1] * 5


def test_an_append_that_cannot_be_written_is_taken_back_by_truncate() -> None:
    world = World(4)
    trunk = opened(world, [1] * 3)
    twin = fork(world.core, trunk)
    begin(world, twin, [2] * 6)
    truncate(world.core, twin, 3)
    check_core(world.core)
    assert twin.block_ids == trunk.block_ids
    assert free(world) == 3
    finish(world, twin, [1])
    assert twin.n_ready == 1
