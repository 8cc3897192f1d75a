"""The table of blocks: the documented transitions and no others, and what in-use blocks forbid."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.blocks.free_list import FreeList
from tiered.blocks.invariants import InvariantError, check_table
from tiered.blocks.record import NO_PARENT, NO_TICKET
from tiered.blocks.state import TRANSITIONS, BlockEvent, BlockState
from tiered.blocks.table import BlockTable
from tiered.errors import IllegalTransition, TieredError
from tiered.types import BlockHash, BlockId, TenantId, Ticket

RED = TenantId("red")
TICKET = Ticket(7)


def hash_of(name: int) -> BlockHash:
    return BlockHash(name.to_bytes(32, "big"))


def allocate(table: BlockTable, name: int = 0, *, parent: BlockId = NO_PARENT, depth: int = 0) -> BlockId:
    block_id = table.allocate(hash_of(name), scope_id=b"s", tenant=RED, parent=parent, depth=depth)
    assert block_id is not None
    return block_id


def in_state(state: BlockState) -> tuple[BlockTable, BlockId]:
    table = BlockTable(1)
    block_id = BlockId(0)
    if state is not BlockState.FREE:
        allocate(table)
    if state in (BlockState.READY, BlockState.LEAVING):
        table.commit(block_id, None)
    if state is BlockState.LEAVING:
        table.start_leaving(block_id, TICKET)
    return table, block_id


ACTIONS: dict[BlockEvent, Callable[[BlockTable, BlockId], object]] = {
    BlockEvent.COMMIT: lambda table, b: table.commit(b, None),
    BlockEvent.ABORT: lambda table, b: table.abort(b),
    BlockEvent.DEMOTE: lambda table, b: table.start_leaving(b, TICKET),
    BlockEvent.EVICT: lambda table, b: table.evict(b),
    BlockEvent.HIT: lambda table, b: table.hit_while_leaving(b),
    BlockEvent.COPIED: lambda table, b: table.finish_leaving(b, TICKET, copied=True),
    BlockEvent.COPY_FAILED: lambda table, b: table.finish_leaving(b, TICKET, copied=False),
}
STALE = {BlockEvent.COPIED, BlockEvent.COPY_FAILED}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(BlockState, ACTIONS)))
def test_a_block_moves_as_the_transitions_say_and_not_otherwise(state: BlockState, event: BlockEvent) -> None:
    table, block_id = in_state(state)
    after = TRANSITIONS.get((state, event))
    if after is not None:
        assert ACTIONS[event](table, block_id) is not False
    elif event in STALE:
        assert ACTIONS[event](table, block_id) is False
    else:
        with pytest.raises(IllegalTransition):
            ACTIONS[event](table, block_id)
    assert table[block_id].state is (state if after is None else after)
    check_table(table)


def test_an_illegal_transition_is_a_bug_and_no_tiered_error() -> None:
    assert not issubclass(IllegalTransition, TieredError)


def test_slots_are_given_until_none_is_free() -> None:
    table = BlockTable(3)
    assert [allocate(table, n) for n in range(3)] == [0, 1, 2]
    assert table.allocate(hash_of(9), scope_id=b"", tenant=RED, parent=NO_PARENT, depth=0) is None
    check_table(table)


def test_a_stale_ticket_changes_nothing() -> None:
    table, block_id = in_state(BlockState.LEAVING)
    assert not table.finish_leaving(block_id, Ticket(8), copied=True)
    assert table[block_id].state is BlockState.LEAVING
    table.hit_while_leaving(block_id)
    assert table[block_id].ticket == NO_TICKET
    assert not table.finish_leaving(block_id, TICKET, copied=True)
    assert table[block_id].state is BlockState.READY


@pytest.mark.parametrize("pins", [1, 2])
def test_a_pinned_block_can_neither_leave_nor_start_to(pins: int) -> None:
    table, block_id = in_state(BlockState.READY)
    for _ in range(pins):
        table.pin(block_id)
    assert not table.may_leave(block_id)
    for action in (BlockEvent.EVICT, BlockEvent.DEMOTE):
        with pytest.raises(IllegalTransition):
            ACTIONS[action](table, block_id)
    for _ in range(pins):
        table.unpin(block_id)
    assert table.may_leave(block_id)
    with pytest.raises(IllegalTransition):
        table.unpin(block_id)


def test_a_free_block_cannot_be_pinned() -> None:
    table, block_id = in_state(BlockState.FREE)
    with pytest.raises(IllegalTransition):
        table.pin(block_id)


def test_children_leave_before_their_parent() -> None:
    table = BlockTable(3)
    parent = allocate(table, 0)
    child = allocate(table, 1, parent=parent, depth=1)
    table.commit(parent, None)
    table.commit(child, None)
    assert not table.may_leave(parent)
    with pytest.raises(IllegalTransition):
        table.evict(parent)
    table.evict(child)
    assert table.may_leave(parent)
    check_table(table)


def test_a_parent_being_filled_cannot_be_given_back_before_its_child() -> None:
    table = BlockTable(2)
    parent = allocate(table, 0)
    child = allocate(table, 1, parent=parent, depth=1)
    with pytest.raises(IllegalTransition):
        table.abort(parent)
    table.abort(child)
    table.abort(parent)
    check_table(table)


def test_a_reused_slot_keeps_nothing_of_its_past() -> None:
    table, block_id = in_state(BlockState.READY)
    table.evict(block_id)
    record = table[block_id]
    assert (record.block_hash, record.scope_id, record.tenant, record.checksum) == (b"", b"", "", None)
    assert allocate(table, 5) == block_id
    assert (record.pins, record.hits, record.children, record.block_hash) == (0, 0, 0, hash_of(5))


@pytest.mark.parametrize("rule", ["I1", "I2", "leaf first", "I4"])
def test_the_check_names_the_rule_that_is_broken(rule: str) -> None:
    """The check itself must be able to fail."""
    table = BlockTable(3)
    parent = allocate(table, 0)
    child = allocate(table, 1, parent=parent, depth=1)
    if rule == "I1":
        table[child].state = BlockState.READY
    elif rule == "I2":
        table.commit(parent, None)
        table.commit(child, None)
        table.start_leaving(child, TICKET)
        table[child].pins = 1
    elif rule == "leaf first":
        table[parent].children = 0
        table.abort(parent)
    else:
        table.commit(child, None)
    with pytest.raises(InvariantError, match=rule):
        check_table(table)


@given(st.data())
def test_the_free_list_gives_the_longest_free_first(data: st.DataObject) -> None:
    n_blocks = data.draw(st.integers(0, 8))
    free, model = FreeList(n_blocks), [BlockId(i) for i in range(n_blocks)]
    taken: list[BlockId] = []
    for give in data.draw(st.lists(st.booleans(), max_size=40)):
        if give and taken:
            block_id = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
            free.give(block_id)
            model.append(block_id)
        elif not give:
            block_id_or_none = free.take()
            assert block_id_or_none == (model.pop(0) if model else None)
            if block_id_or_none is not None:
                taken.append(block_id_or_none)
        assert len(free) == len(model)
        assert all((BlockId(i) in free) == (i in model) for i in range(n_blocks))


def test_a_filling_block_that_hangs_on_nothing_can_be_given_its_identity_once() -> None:
    table = BlockTable(3)
    parent, block_id = allocate(table, 1), allocate(table, 2)
    table.pin(block_id)
    table.rename(block_id, hash_of(3), parent=parent, depth=1)
    check_table(table)
    assert (table[block_id].block_hash, table[block_id].parent, table[parent].children) == (hash_of(3), parent, 1)
    with pytest.raises(IllegalTransition, match="rename of block 1, FILLING under parent 0"):
        table.rename(block_id, hash_of(4), parent=NO_PARENT, depth=0)
    table.commit(parent, None)
    with pytest.raises(IllegalTransition, match="rename of block 0, READY"):
        table.rename(parent, hash_of(4), parent=NO_PARENT, depth=0)
    check_table(table)
