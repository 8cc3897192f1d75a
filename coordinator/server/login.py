"""``/login``: a page that asks a browser for a token and gives it a session for the dashboard.

Owns that page and the cookie's attributes. The token travels in a form's body, never in an address, and stays in no
page; what the session says is :mod:`coordinator.server.session`'s business.
"""

from __future__ import annotations

import html
from typing import Final
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from coordinator.server.errors import ApiError
from coordinator.server.gate import LOGIN
from coordinator.server.services import ServicesDep
from coordinator.server.session import COOKIE

router = APIRouter(include_in_schema=False)

_HOME: Final = "/"
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tiered</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; display: grid; place-items: center; min-height: 90vh; margin: 1rem; }}
form {{ display: grid; gap: 0.75rem; width: min(24rem, 100%); }}
input, button {{ font: inherit; padding: 0.5rem 0.75rem; }}
p {{ margin: 0; }}
.error {{ color: #c62828; }}
</style>
</head>
<body>
<form method="post" action="login" autocomplete="off">
<h1>Tiered</h1>
<label for="token">Your token: the admin, the read or a tenant's token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
{error}<button type="submit">Open the dashboard</button>
</form>
</body>
</html>
"""
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",  # with less, a browser sends our own form as one of nobody's
}


@router.get(LOGIN)
async def get_login(services: ServicesDep) -> Response:
    return _page() if services.credentials.asked_for else RedirectResponse(_HOME, status_code=303)


@router.post(LOGIN)
async def log_in(request: Request, services: ServicesDep) -> Response:
    """Open a session, or show the page again with what is wrong."""
    _require_own_page(request)
    # Latin-1 reads whatever came; a token that is not ASCII is nobody's.
    form = parse_qs((await request.body()).decode("latin-1"))
    token = form.get("token", [""])[0].strip()
    try:
        caller = await services.credentials.of_token(token)
    except ApiError as refusal:
        return _page(refusal.message, status=refusal.status)
    if caller is None:
        return _page("This token is not valid here, or no longer.", status=401)
    answer = RedirectResponse(_HOME, status_code=303)
    answer.set_cookie(
        COOKIE,
        services.credentials.sessions.open(caller, token),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout")
async def log_out(request: Request) -> Response:
    _require_own_page(request)
    answer = RedirectResponse(LOGIN, status_code=303)
    answer.delete_cookie(COOKIE)
    return answer


def _require_own_page(request: Request) -> None:
    """Errors: ApiError 403 when another site's page sent the form."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise ApiError(403, f"this form was sent by a page of {origin[:100]}, not by ours", field="origin")


def _page(error: str = "", *, status: int = 200) -> HTMLResponse:
    shown = f'<p class="error" role="alert">{html.escape(error)}</p>\n' if error else ""
    return HTMLResponse(_PAGE.format(error=shown), status_code=status, headers=_HEADERS)
