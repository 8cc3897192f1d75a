"""check(table): every rule over the whole table, for tests and debug mode. Cost: O(n_blocks)."""

from __future__ import annotations

from collections import Counter

from tiered.blocks.record import NO_PARENT, NO_TICKET
from tiered.blocks.state import BlockState
from tiered.blocks.table import BlockTable
from tiered.types import BlockId


class InvariantError(AssertionError):
    """A rule of the project does not hold: a bug."""


def require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantError(rule)


def check_table(table: BlockTable) -> None:
    """I1 and I2, and that parents and children agree, also on which tenants use both."""
    counts = Counter(record.state for record in table.records)
    for state in BlockState:
        require(
            counts[state] == table.count(state),
            f"I1: {counts[state]} blocks are {state.name}, counted {table.count(state)}",
        )
    require(len(table.free_list) == counts[BlockState.FREE], "I1: the free list does not hold the FREE blocks")
    children = Counter(record.parent for record in table.records if record.parent != NO_PARENT)
    uses = Counter((r.parent, tenant) for r in table.records if r.parent != NO_PARENT for tenant in r.tenants)
    for index, record in enumerate(table.records):
        block_id = BlockId(index)
        if record.shares is not None:
            require(
                len(record.shares) > 1 and record.tenant in record.shares and record.state is BlockState.READY,
                f"block {index} {record.state.name} of {record.tenant!r} is shared by {record.shares}",
            )
            for tenant, n_children in record.shares.items():
                require(
                    n_children == uses[block_id, tenant],
                    f"block {index} counts {n_children} children that {tenant!r} uses, has {uses[block_id, tenant]}",
                )
        require(
            (record.state is BlockState.FREE) == (block_id in table.free_list),
            f"I1: block {index} and the free list disagree",
        )
        require(record.pins >= 0, f"I2: block {index} has {record.pins} pins")
        require(
            record.children == children[block_id] or record.state is BlockState.FREE,
            f"block {index} counts {record.children} children, has {children[block_id]}",
        )
        require(
            (record.ticket != NO_TICKET) == (record.state is BlockState.LEAVING),
            f"block {index} {record.state.name} with ticket {record.ticket}",
        )
        if record.state is BlockState.LEAVING:
            require(record.pins == 0 and record.children == 0, f"I2: block {index} leaves while in use")
        if record.parent != NO_PARENT:
            parent = table[record.parent]
            require(parent.state is not BlockState.FREE, f"leaf first: block {index} outlived its parent")
            require(
                set(record.tenants) <= set(parent.tenants),
                f"block {index} is used by {record.tenants}, its parent only by {parent.tenants}",
            )
            require(
                parent.depth == record.depth - 1,
                f"I4: block {index} at depth {record.depth} under depth {parent.depth}",
            )
            require(
                record.state is BlockState.FILLING or parent.state is not BlockState.FILLING,
                f"I4: block {index} is {record.state.name} before its parent is whole",
            )
