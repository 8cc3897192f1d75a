"""Where else the blocks of this node are, and how they get to a second place; off every request's path.

Owns the question and the sending down. Who asks, and how often, is for a drain and for second copies to say.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tiered.core.demote import copy_and_keep
from tiered.errors import TierError
from tiered.types import BlockHash, NodeId, Whereabouts
from worker.hot_tier import HotTier

LOOKUP_BLOCKS: Final = 256
COPY_WAIT_S: Final = 1.0
"""For one copy to end, before it is looked at again."""

WRITTEN_S: Final = 5.0
"""For what was copied out to be in Redis; what is not by then is seen by the next look."""

TRIES: Final = 5
AGAIN_S: Final = 0.2
"""A lookup's deadline is that of a request which waits; of thousands in a row one may miss it."""


async def places_of(hot: HotTier, hashes: Sequence[BlockHash]) -> dict[BlockHash, Whereabouts]:
    """What the directory says of each. Errors: TierError."""
    places: dict[BlockHash, Whereabouts] = {}
    for start in range(0, len(hashes), LOOKUP_BLOCKS):
        batch = hashes[start : start + LOOKUP_BLOCKS]
        places.update(zip(batch, await _lookup(hot, batch), strict=True))
    return places


async def _lookup(hot: HotTier, batch: Sequence[BlockHash]) -> Sequence[Whereabouts]:
    for _ in range(TRIES - 1):
        try:
            return await hot.lookup(batch)
        except TierError:
            await asyncio.sleep(AGAIN_S)
    return await hot.lookup(batch)


def alone(hot: HotTier, places: Mapping[BlockHash, Whereabouts]) -> list[BlockHash]:
    """Those that neither Redis nor a node that stays has."""
    return [block_hash for block_hash, where in places.items() if not where.in_redis and not any(owners(hot, where))]


def owners(hot: HotTier, where: Whereabouts) -> Iterable[NodeId]:
    """The other nodes that hold it, are alive and stay.

    An owner that drains does not count: of two nodes that leave, each would trust the other.
    """
    live, leaving = hot.live_peers, hot.leaving
    return (
        owner.node
        for owner in where.owners
        if (peer := live.get(owner.node)) is not None
        and peer.epoch == owner.epoch
        and leaving.get(owner.node) != owner.epoch
    )


async def copy_down(hot: HotTier, hashes: Iterable[BlockHash], *, part: float = 1.0) -> None:
    """Send copies of these blocks to Redis while they stay, and wait until they are there or will not be.

    part: of the copies that may be under way at once, how many of these.
    """
    wanted = deque(hashes)
    while wanted:
        copy_and_keep(hot.core, wanted, part=part)
        hot.turn()
        if wanted:
            await hot.progressed(COPY_WAIT_S)
    await hot.copied(timeout_s=WRITTEN_S)
