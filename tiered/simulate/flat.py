"""What a pool without the leaf-first rule would do: blocks stand alone, and only those in use may not leave.

The workers' core never lets a block leave before what hangs on it. By recency that rule costs nothing, since a parent
is always younger than its children. A policy that ranks by anything else has other hits without it, and those are
the ones that published simulators count. So this replay is for comparing with them, and for seeing what the rule
costs or gains. It asks the same policies, each told of no parents; it has one pool, no bounds and no tier below.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from tiered.blocks.record import NO_PARENT
from tiered.eviction.policy import PolicyFactory
from tiered.simulate.outcome import Outcome
from tiered.simulate.trace import Request
from tiered.types import BlockHash, BlockId, TenantId


class Order(enum.StrEnum):
    """In which order a request's blocks are touched or inserted, and what counts as a hit."""

    TAIL_FIRST = "tail-first"
    """The longest cached prefix counts; then the deepest block is the first and so the oldest, as in our core."""
    HEAD_FIRST = "head-first"
    """The longest cached prefix counts; then the first block is the oldest."""
    PLAIN = "plain"
    """Each access stands alone, first to last: it counts wherever it is found, and nothing is in use."""


def replay_flat(
    requests: Iterable[Request],
    factory: PolicyFactory,
    *,
    n_blocks: int,
    order: Order = Order.TAIL_FIRST,
    tenant_of: Callable[[Request], TenantId] = lambda request: TenantId("all"),
    on_request: Callable[[], None] | None = None,
) -> Outcome:
    """Hits of one policy over ``n_blocks`` slots. A request longer than the pool keeps its first blocks.

    tenant_of: only for counting; the tenants share one policy.
    """
    pool = _Pool(factory, n_blocks)
    outcome = Outcome()
    for request in requests:
        blocks = request.blocks
        if order is Order.PLAIN:
            hits = sum(pool.use(block) for block in blocks)
        else:
            hits = pool.prefix(blocks)
            kept = blocks[:n_blocks]
            in_use = frozenset(kept)
            for block in reversed(kept) if order is Order.TAIL_FIRST else kept:
                pool.use(block, in_use=in_use)
        for tally in outcome.of(tenant_of(request)):
            tally.count(n_blocks=len(blocks), hot=hits)
        if on_request is not None:
            on_request()
    return outcome


class _Pool:
    """Slots by the trace's block ids, and the policy that orders them."""

    def __init__(self, factory: PolicyFactory, n_blocks: int) -> None:
        self._policy = factory(n_blocks)
        self._slots: dict[int, BlockId] = {}
        self._blocks: list[int] = []
        self._n_blocks = n_blocks

    def prefix(self, blocks: Sequence[int]) -> int:
        """How many blocks of the longest cached prefix are here."""
        n = 0
        for block in blocks:
            if block not in self._slots:
                break
            n += 1
        return n

    def use(self, block: int, *, in_use: Container[int] = ()) -> bool:
        """Touch or insert it; whether it was here. Nothing of ``in_use`` leaves for it."""
        slot = self._slots.get(block)
        if slot is not None:
            self._policy.on_hit(slot)
            return True
        slot = self._room(in_use)
        if slot is not None:
            self._slots[block] = slot
            self._blocks[slot] = block
            key = BlockHash(block.to_bytes(8, "big", signed=True))
            self._policy.on_insert(slot, key=key, parent=NO_PARENT, recompute_cost=1.0)
        return False

    def _room(self, in_use: Container[int]) -> BlockId | None:
        if len(self._blocks) < self._n_blocks:
            self._blocks.append(-1)
            return BlockId(len(self._blocks) - 1)
        victim = next(self._may_leave(in_use), None)
        if victim is not None:
            self._policy.on_remove(victim)
            del self._slots[self._blocks[victim]]
        return victim

    def _may_leave(self, in_use: Container[int]) -> Iterator[BlockId]:
        return (slot for slot in self._policy.victims() if self._blocks[slot] not in in_use)
