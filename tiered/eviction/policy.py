"""What every eviction policy offers, and the contract its suite checks.

A policy sees block ids: never tensors, clocks or pins. It is told of every insert, hit and removal, and proposes
victims, best first; the caller skips what may not leave (pinned, or with resident children). Within one prefix the
caller reports deeper blocks first, so that by recency a parent is always younger than its children and leaves
come before their parents without a search.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tiered.types import BlockId


class EvictionPolicy(Protocol):
    def on_insert(self, block_id: BlockId, *, recompute_cost: float) -> None:
        """A block became matchable. recompute_cost: tokens that a miss would compute for it, its prefix excluded."""

    def on_hit(self, block_id: BlockId) -> None: ...

    def on_remove(self, block_id: BlockId) -> None:
        """The block left, whoever decided it."""

    def victims(self) -> Iterator[BlockId]:
        """Every known id once, best victim first. Not to be used across a change."""

    def __len__(self) -> int: ...
