"""Short words for telling a policy what happened: a block is named by its id, its content by default too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from tiered.blocks.record import NO_PARENT
from tiered.eviction.policy import EvictionPolicy
from tiered.types import BlockHash, BlockId


def key_of(content: int) -> BlockHash:
    return BlockHash(hashlib.sha256(str(content).encode()).digest())


def insert(
    policy: EvictionPolicy,
    *block_ids: int,
    content: int | None = None,
    parent: int = NO_PARENT,
    cost: float = 1.0,
) -> None:
    for block_id in block_ids:
        key = key_of(block_id if content is None else content)
        policy.on_insert(BlockId(block_id), key=key, parent=BlockId(parent), recompute_cost=cost)


def hit(policy: EvictionPolicy, *block_ids: int) -> None:
    for block_id in block_ids:
        policy.on_hit(BlockId(block_id))


def touch(policy: EvictionPolicy, *block_ids: int) -> None:
    for block_id in block_ids:
        policy.on_touch(BlockId(block_id))


def remove(policy: EvictionPolicy, *block_ids: int) -> None:
    for block_id in block_ids:
        policy.on_remove(BlockId(block_id))


def evict(policy: EvictionPolicy, refused: Iterable[int] = ()) -> int:
    """Take the first victim that is not refused."""
    victim = next(block_id for block_id in policy.victims() if block_id not in refused)
    policy.on_remove(victim)
    return victim


def order(policy: EvictionPolicy) -> list[int]:
    return list(policy.victims())


def replay(policy: EvictionPolicy, contents: Iterable[int], n_blocks: int) -> int:
    """Ask for one content after the other with room for so many blocks; returns the hits."""
    resident: dict[int, int] = {}
    content_of: dict[int, int] = {}
    n_hits = 0
    for content in contents:
        if content in resident:
            hit(policy, resident[content])
            n_hits += 1
            continue
        block_id = evict(policy) if len(resident) == n_blocks else len(resident)
        resident.pop(content_of.get(block_id, -1), None)
        insert(policy, block_id, content=content)
        resident[content] = block_id
        content_of[block_id] = content
    return n_hits
