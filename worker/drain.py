"""Empties this node in order: nothing new is admitted, what no other place has goes to Redis, then the node leaves.

Owns the order of the steps and the progress that others see. What is hot is served all the while, and afterwards to
the engines beside us until the process is stopped; no other node counts on it then.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    _first: int | None = None
    """Blocks to move when this drain first looked; None: it has not yet."""
    _left: int = 0
    _idle: int = 0
    """Passes in a row that moved nothing."""
    _is_put_off: bool = False
    _stops: bool = False
    """It is an orderly stop that drains, or is to."""
    _is_own: bool = False
    """Asked for by that stop, and by nobody else."""

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
            self._is_put_off = False
        except TierError as error:
            is_under_way = self._stops or self._of != NO_EPOCH
            if is_under_way and not self._ended and not self._is_put_off:
                self._is_put_off = True
                _log.warning("the drain waits for the shared state", node=self.node, error=str(error))

    async def empty(self, *, timeout_s: float) -> None:
        """Drain of our own accord, of an orderly stop: as much as goes within the time.

        Asked for like any other drain, so that of two nodes that stop at once neither trusts the other.
        """
        self._stops = True
        try:
            async with asyncio.timeout(timeout_s):
                while not self._ended:
                    await self._ask()
                    await self.look()
                    if not self._ended:
                        await asyncio.sleep(POLL_S)
        except TimeoutError:
            left = "unknown" if self._first is None else self._left
            _log.warning("stopped before all was moved", node=self.node, left=left)

    async def _ask(self) -> None:
        """Unless it is asked already."""
        epoch = self.member.epoch
        if self._of == NO_EPOCH and epoch != NO_EPOCH:
            with contextlib.suppress(TierError):  # the next look says that it waits
                await asyncio.to_thread(self.drains.ask, self.node, epoch)
                self._begin(epoch)
                self._is_own = True

    async def withdraw(self) -> None:
        """What a stop asked for itself is nothing to remember once the node has left; best effort."""
        if not self._is_own:
            return
        with contextlib.suppress(TierError):
            request = await asyncio.to_thread(self.drains.asked, self.node)
            if request is not None and request.epoch == self._of:
                await asyncio.to_thread(self.drains.cancel, self.node)

    async def _heed(self, request: DrainRequest | None) -> None:
        epoch, present = NO_EPOCH if request is None else Epoch(request.epoch), self.member.epoch
        if self._of != NO_EPOCH and epoch != self._of:
            await self._call_off()
        if epoch == NO_EPOCH or (epoch == self._of and self._ended):
            return
        if epoch == self._of and present > epoch:  # its lease lapsed meanwhile, and it has joined again
            await asyncio.to_thread(self.drains.ask, self.node, present)
            self._of = epoch = present
        if epoch < present:
            await asyncio.to_thread(self.drains.cancel, self.node)  # it was another process's
        elif epoch == present:
            if self._of == NO_EPOCH:
                self._begin(epoch)
            if await self._pass():
                await self._leave()

    def _begin(self, epoch: Epoch) -> None:
        _log.info("draining", node=self.node, epoch=epoch)
        self._of, self._ended, self._first, self._left, self._idle = epoch, False, None, 0, 0
        self.hot.draining = True
        self.hot.drain = DrainProgress(state=DrainState.DRAINING)

    async def _pass(self) -> bool:
        """Copy what is in no other place; whether nothing is left to do. Errors: TierError; nothing is lost then."""
        await self.member.look_around()  # who has gone since the last heartbeat has nothing for us
        left = await self._alone()
        has_moved = self._first is None or len(left) < self._left
        self._idle = 0 if has_moved else self._idle + 1
        self._left = len(left)
        if self._first is None:
            self._first = self._left
        ended = not left or self._idle >= PASSES_MAX
        self.hot.drain = DrainProgress(
            state=DrainState.DRAINED if ended else DrainState.DRAINING,
            left_blocks=self._left,
            moved_blocks=max(0, self._first - self._left),
            stuck_blocks=0 if has_moved else self._left,
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
        _log.info("the drain was called off, or its request was lost", node=self.node)
        had_left, self._of, self._ended = self._ended, NO_EPOCH, False
        self.hot.draining = False
        self.hot.drain = DrainProgress()
        if had_left:
            await self.member.come_back()

    async def _alone(self) -> list[BlockHash]:
        """The blocks that neither Redis nor a node that stays has, the shallowest first. Errors: TierError."""
        return self.hot.by_depth(alone(self.hot, await places_of(self.hot, self.hot.resident_hashes())))
