"""A reply in server-sent events, to a client that may stop listening at any time.

Owns the sending and its bound; what is sent is handed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tiered.serving.asking import Asking, ClientGone
from tiered.serving.errors import ApiError
from tiered.serving.replies import sse


class EventStream(Response):
    """Sends ``events`` as they come, and closes ``asking`` at the end. An error after the start is an event, too."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        asking: Asking,
        *,
        send_timeout_s: float,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._events = events
        self._asking = asking
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._asking:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                await self._send_all(send)
            except (ClientGone, TimeoutError):
                return  # the server closes the connection of a reply that has no end

    async def _send_all(self, send: Send) -> None:
        try:
            async for event in self._events:
                await self._send(send, event)
        except ApiError as error:
            await self._send(send, sse(error.body()))
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._send_timeout_s):
            await send({"type": "http.response.body", "body": data, "more_body": more})
