"""Bounds on a request's body, before any route reads it: how large it may be, and how long it may take to arrive.

Owns the two bounds. The body is read here, whole, and handed on in one piece.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.server.errors import ApiError, answer

BODY_BYTES_MAX: Final = 64 << 10
"""A tenant's policy is a few hundred bytes."""

PROMPT_BYTES_MAX: Final = 8 << 20
"""A million token ids, or a hundred thousand block hashes in hex."""

BODY_S: Final = 10.0
"""For the whole body: 8 MiB at under 1 MB/s."""

_PROMPTS: Final = re.compile(r"/v1/(route|prefixes|blocks)(/.*)?|/v1/tenants/[^/]+/(pins|prefixes|blocks)(/.*)?")
"""Where a body may hold a prompt."""


class BodyLimit:
    """ASGI middleware over the API's own paths and the login. Behind the gate: only who may call at all is read."""

    def __init__(self, app: ASGIApp, *, body_s: float = BODY_S):
        self._app = app
        self._body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            async with asyncio.timeout(self._body_s):
                body = await _read(receive, Headers(scope=scope), limit=_limit(scope["path"]))
        except TimeoutError:
            return await answer(408, f"the body did not arrive within {self._body_s:g} s", field="body")(
                scope, receive, send
            )
        except ApiError as refusal:
            return await answer(refusal.status, refusal.message, field=refusal.field)(scope, receive, send)
        if body is None:  # the client has gone
            return None
        return await self._app(scope, _replay(body, receive), send)


def _limit(path: str) -> int:
    return PROMPT_BYTES_MAX if _PROMPTS.fullmatch(path) else BODY_BYTES_MAX


async def _read(receive: Receive, headers: Headers, *, limit: int) -> bytes | None:
    """The whole body; None if the client went away meanwhile. Errors: ApiError 413, before or while it is read."""
    announced = headers.get("content-length", "0")
    if not announced.isdecimal() or len(announced) > 18 or int(announced) > limit:
        raise ApiError(413, f"a body here may have {limit} bytes, not {announced[:32]}", field="body")
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise ApiError(413, f"a body here may have {limit} bytes, and this one has more", field="body")
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """What the body was, and from then on what the client does."""
    is_sent = False

    async def next_message() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message
