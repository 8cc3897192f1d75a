"""Empties this node in order: nothing new is admitted, what no other place has goes to Redis, then the node leaves.

Owns the order of the steps and the progress that others see. What is hot is served all the while, and afterwards to
the engines beside us until the process is stopped; no other node counts on it then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from tiered.cluster.drains import DrainRequest, Drains
from tiered.errors import TierError
from tiered.log import get_logger
from tiered.types import NO_EPOCH, BlockHash, DrainProgress, DrainState, Epoch, NodeId
from worker.elsewhere import alone, copy_down, places_of
from worker.hot_tier import HotTier

POLL_S: Final = 0.5
PASSES_MAX: Final = 5
"""In a row that move nothing: then what is left has no room in Redis, and the node leaves without it."""

_log = get_logger("worker.drain")


class Member(Protocol):
    """What a drain needs of the membership task."""

    @property
    def epoch(self) -> Epoch: ...

    async def look_around(self) -> object: ...

    async def part(self) -> None: ...

    async def come_back(self) -> None: ...


@dataclass(slots=True)
class DrainTask:
    node: NodeId
    drains: Drains
    hot: HotTier
    member: Member
    _of: Epoch = NO_EPOCH
    """The life that drains, or has drained."""
    _ended: bool = False
    _idle: int = 0
    """Passes in a row that moved nothing."""

    async def run(self) -> None:
        """Look for ever whether a drain is asked for, or called off; and drain."""
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """One look, and one pass of a drain. What cannot be read changes nothing."""
        try:
            requests = await asyncio.to_thread(self.drains.all)
            self.hot.leaving = {node: Epoch(request.epoch) for node, request in requests.items()}
            await self._heed(requests.get(self.node))
        except TierError as error:
            _log.debug("put off", error=str(error))

    async def empty(self, *, timeout_s: float) -> None:
        """Move what no other place has, of an orderly stop: as much as goes within the time."""
        self._begin(self.member.epoch)
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._pass():
                    pass
        except (TimeoutError, TierError) as error:
            _log.warning("stopped before all was moved", left=self.hot.drain.left_blocks, reason=str(error))

    async def _heed(self, request: DrainRequest | None) -> None:
        epoch = NO_EPOCH if request is None else Epoch(request.epoch)
        if self._of != NO_EPOCH and epoch != self._of:
            await self._call_off()
        if epoch == NO_EPOCH or (epoch == self._of and self._ended):
            return
        if epoch < self.member.epoch:
            await asyncio.to_thread(self.drains.cancel, self.node)  # it was an earlier life's
        elif epoch == self.member.epoch:
            if self._of == NO_EPOCH:
                _log.info("draining", node=self.node, epoch=epoch)
                self._begin(epoch)
            if await self._pass():
                await self._leave()

    def _begin(self, epoch: Epoch) -> None:
        self._of, self._ended, self._idle = epoch, False, 0
        self.hot.draining = True
        self.hot.drain = DrainProgress(state=DrainState.DRAINING)

    async def _pass(self) -> bool:
        """Copy what is in no other place; whether nothing is left to do. Errors: TierError; nothing is lost then."""
        await self.member.look_around()  # who has gone since the last heartbeat has nothing for us
        left = await self._alone()
        before = self.hot.drain
        first = before.left_blocks + before.moved_blocks
        has_moved = first == 0 or len(left) < before.left_blocks
        self._idle = 0 if has_moved else self._idle + 1
        ended = not left or self._idle >= PASSES_MAX
        self.hot.drain = DrainProgress(
            state=DrainState.DRAINED if ended else DrainState.DRAINING,
            left_blocks=len(left),
            moved_blocks=max(0, first - len(left)),
            stuck_blocks=0 if has_moved else len(left),
        )
        if not ended:
            await copy_down(self.hot, left)
        return ended

    async def _leave(self) -> None:
        outcome = self.hot.drain
        await asyncio.to_thread(self.drains.ended, self.node, self._of, outcome)
        self._ended = True
        _log.info("drained", node=self.node, moved=outcome.moved_blocks, left=outcome.left_blocks)
        await self.member.part()

    async def _call_off(self) -> None:
        _log.info("the drain was called off", node=self.node)
        had_left, self._of, self._ended = self._ended, NO_EPOCH, False
        self.hot.draining = False
        self.hot.drain = DrainProgress()
        if had_left:
            await self.member.come_back()

    async def _alone(self) -> list[BlockHash]:
        """The blocks that neither Redis nor a node that stays has, the shallowest first. Errors: TierError."""
        return self.hot.by_depth(alone(self.hot, await places_of(self.hot, self.hot.resident_hashes())))
