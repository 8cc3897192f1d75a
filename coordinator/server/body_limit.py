"""Refuses a request body larger than any route of ours could mean, before it is read into memory."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

BODY_BYTES_MAX: Final = 64 << 10
"""A tenant's policy is a few hundred bytes."""


class BodyLimit:
    """ASGI middleware over the API's own paths. It goes by the announced length, which the server then
    enforces; a body that comes in chunks announces none and is refused (411).
    """

    def __init__(self, app: ASGIApp, *, path_prefix: str = "/v1/") -> None:
        self._app = app
        self._path_prefix = path_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(self._path_prefix):
            headers = Headers(scope=scope)
            length = headers.get("content-length", "0")
            if "transfer-encoding" in headers:
                return await _refuse(411, "send the body with a Content-Length")(scope, receive, send)
            if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
                message = f"a body may have {BODY_BYTES_MAX} bytes, not {length}"
                return await _refuse(413, message)(scope, receive, send)
        return await self._app(scope, receive, send)


def _refuse(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"field": "body", "message": message}}, status_code=status)
