"""Decisions for threads, made on the event loop: it alone may look at what they are about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tiered.errors import TierTimeout, TierUnavailable
from tiered.pool.pool import BlockPool
from tiered.types import BlockHash
from tiered.wire.messages import Explain, Explained, Recent
from worker.hot_tier import HotTier, Lent
from worker.membership import MembershipTask

LOOP_ANSWER_S = 2.0
"""How long a thread waits for the event loop: it only ever runs short decisions."""

T = TypeVar("T")


def on_loop(loop: asyncio.AbstractEventLoop, decide: Callable[[], T]) -> T:
    """Run a short decision on the loop from another thread. Errors: TierError when the loop does not answer."""
    answer: Future[T] = Future()

    def turn() -> None:
        try:
            answer.set_result(decide())
        except Exception as error:
            answer.set_exception(error)

    try:
        loop.call_soon_threadsafe(turn)
        return answer.result(LOOP_ANSWER_S)
    except RuntimeError:
        raise TierUnavailable("the worker has stopped") from None
    except TimeoutError:
        raise TierTimeout(f"the event loop did not answer within {LOOP_ANSWER_S:g} s") from None


class Lending:
    """The hot tier as the peer server's threads see it: each question is answered on the loop."""

    def __init__(self, hot: HotTier, loop: asyncio.AbstractEventLoop) -> None:
        self._hot = hot
        self._loop = loop
        self.membership: MembershipTask | None = None

    def lend(self, hashes: list[BlockHash], *, scope_id: bytes) -> Lent | None:
        return on_loop(self._loop, lambda: self._hot.lend(hashes, scope_id=scope_id))

    def take_back(self, lent: Lent) -> None:
        on_loop(self._loop, lambda: self._hot.take_back(lent))

    def epoch(self) -> int:
        return 0 if self.membership is None else self.membership.epoch

    def pool(self) -> BlockPool | None:
        return self._hot.pool

    def explain(self, request: Explain | Recent) -> Explained:
        return on_loop(self._loop, lambda: self._hot.explain(request))
