"""One request between the web and the engine: its jobs, the events that come back, and whether its client is there.

Owns the crossing from the engine's thread to the event loop, and that nobody's answer is made for nobody. It knows
neither bodies nor the form of replies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.types import Receive

from tiered.serving.answer import Event, Failed, Job, Trouble
from tiered.serving.engine import Engine
from tiered.serving.errors import ApiError, failed, stopping


class ClientGone(Exception):
    """Nobody is there any more to be answered."""


class Asking:
    """Use it in a ``with``: at its end nothing of the request runs or waits."""

    def __init__(self, engine: Engine, receive: Receive) -> None:
        self._engine = engine
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()
        """Bounded by what the jobs may say. None: the client has gone."""
        self._jobs: Sequence[Job] = ()
        self._watch: asyncio.Task[None] | None = None

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._engine.cancel(self._jobs)

    def emit(self, index: int) -> Callable[[Event], None]:
        """For the job of the prompt with that index; may be called from any thread."""

        def emit(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever listened
                self._loop.call_soon_threadsafe(self._inbox.put_nowait, (index, event))

        return emit

    def ask(self, jobs: Sequence[Job]) -> None:
        """Errors: ApiError 429 when too many wait already."""
        if not self._engine.submit(jobs):
            raise self._busy("too many requests wait already")
        self._jobs = jobs
        self._watch = asyncio.create_task(self._watch_client())

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Until its reader has had enough. Errors: ApiError when an answer fails; ClientGone."""
        while True:
            came = await self._inbox.get()
            if came is None:
                raise ClientGone
            index, event = came
            if isinstance(event, Failed):
                raise self._error(event.trouble)
            yield index, event

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass  # the body was read; what else a client sends is nothing to us
        self._inbox.put_nowait(None)

    def _error(self, trouble: Trouble) -> ApiError:
        if trouble is Trouble.DISPLACED:
            return self._busy("too many of your requests wait, and others had none")
        return stopping() if trouble is Trouble.STOPPING else failed()

    def _busy(self, why: str) -> ApiError:
        after_s = self._engine.retry_after_s
        return ApiError(
            429,
            f"{why}; try again in {after_s} s",
            code="queue_full",
            headers={"Retry-After": str(after_s)},
        )
