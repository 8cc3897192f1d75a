"""What every eviction policy offers, and the contract its suite checks.

A policy sees block ids and what their content is called: never tensors, clocks or pins. It is told of every insert,
hit and removal, and proposes victims, best first; the caller skips what may not leave (pinned, or with resident
children). Within one prefix the caller reports deeper blocks first, so that by recency a parent is always younger
than its children and leaves come before their parents without a search. A policy that ranks by anything else keeps
what is no leaf out of the search (``leaves.py``), or each search would meet it anew.

There is one instance per tenant. Ids are slots and are used again; ``key`` outlives the slot, so a policy that
remembers what left (a ghost) remembers keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from tiered.types import BlockHash, BlockId, Hints


class EvictionPolicy(Protocol):
    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        """A block became matchable.

        key:            names its content; no two known blocks have the same.
        parent:         the block it hangs on, NO_PARENT for the first of a prefix. It stays while this one is here,
                        may be told of later than this one, and may belong to another tenant.
        recompute_cost: what a miss would compute for it, its prefix excluded, in tokens of a prompt's beginning; it
                        grows with depth.
        """

    def on_hit(self, block_id: BlockId) -> None:
        """Another request uses it."""

    def on_touch(self, block_id: BlockId) -> None:
        """The use that was told of before goes on: as recent as a hit, but not one more of them."""

    def on_remove(self, block_id: BlockId) -> None:
        """The block left, whoever decided it.

        If this is where the newest look at ``victims`` stopped, and nothing was told since, it is an eviction: what
        the look passed over was refused. Any other block may go too, and its going says nothing of the others.
        """

    def victims(self) -> Iterator[BlockId]:
        """Every known id once, best victim first. Looking alone changes nothing.

        One look at a time, and none across a change. What has known children cannot leave; it may come last.
        """

    def __len__(self) -> int: ...


@runtime_checkable
class RequestAware(Protocol):
    """What a policy offers besides, if it learns from whole requests and their times.

    ``request`` names one for as long as it runs and is never used again. Times are seconds on one clock and do not
    run backwards. Whatever arrives here about a block comes before ``on_hit`` and ``on_insert`` tell of it.
    """

    def on_request(self, request: int, path: Sequence[BlockHash], *, now: float, hints: Hints) -> None:
        """A prompt is looked up. path: all its full blocks, cached or not."""

    def on_save(self, request: int, path: Sequence[BlockHash], *, now: float, hints: Hints) -> None:
        """A prompt's blocks are about to be stored, perhaps with those of its answer behind them: the rest of a
        request that was looked up, or one that nobody looked up before."""

    def on_end(self, request: int, *, now: float, output_tokens: int | None) -> None:
        """Nothing more comes of the request under this name."""

    def on_close(self, session: str, *, now: float) -> None:
        """The caller says that the conversation of this name is over."""

    def share_memory(self, n_policies: int) -> None:
        """So many policies, this one among them, learn about one pool now: each remembers its part of what one alone
        would, or a thousand tenants would fill the machine with what has left."""


PolicyFactory: TypeAlias = Callable[[int], EvictionPolicy]
"""From the number of blocks in the pool to a policy for one tenant.

The number bounds what the policy remembers. It is not what the tenant will hold, which may be any part of the pool
and changes as others come and go: a share of the cache is taken of what the policy knows, not of this number.
"""
