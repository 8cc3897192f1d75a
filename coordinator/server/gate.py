"""The gate: every request passes it before anything else is looked at, its body included.

Owns which paths are open to everybody; all others, also those that do not exist, need a caller. What the caller may
do is then the route's question.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.server.credentials import Credentials
from coordinator.server.errors import ApiError, answer
from coordinator.server.session import session_of

LOGIN: Final = "/login"

OPEN: Final = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json", LOGIN})
"""Whether we live, what the API looks like, and the page that asks for a token: none says anything of the cluster."""

OPEN_BELOW: Final = ("/docs/",)

PAGE_HEADER: Final = "tiered-page"
"""Our own pages send it with each call of the API. A page from elsewhere cannot: a browser would ask us first whether
it may, and is refused."""

_API: Final = "/v1/"


class Gate:
    """ASGI middleware, the outermost. Puts the Caller into ``request.state.caller``."""

    def __init__(self, app: ASGIApp, *, credentials: Credentials) -> None:
        self._app = app
        self._credentials = credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "lifespan" or path in OPEN or path.startswith(OPEN_BELOW):
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        # A cookie comes along with whatever page made the browser call; the API wants to hear that it is one of ours.
        is_ours = not path.startswith(_API) or PAGE_HEADER in headers
        session = session_of(headers) if is_ours else ""
        try:
            caller = await self._credentials.caller(headers, session=session)
        except ApiError as refusal:
            if scope["type"] == "websocket":
                return await send({"type": "websocket.close", "code": 1008, "reason": refusal.message[:100]})
            return await _refused(refusal, scope, headers)(scope, receive, send)
        scope.setdefault("state", {})["caller"] = caller
        return await self._app(scope, receive, send)


def _refused(refusal: ApiError, scope: Scope, headers: Headers) -> Response:
    """A page of the dashboard leads to where a browser can log in; everybody else gets the sentence."""
    for_browser = scope["method"] == "GET" and "text/html" in headers.get("accept", "")
    if refusal.status == 401 and for_browser and not scope["path"].startswith(_API):
        return RedirectResponse(LOGIN, status_code=303)
    return answer(refusal.status, refusal.message, field=refusal.field)
