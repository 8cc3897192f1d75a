"""Who may change things: the holder of the admin token, or, where none is set, whoever sits at this machine.

Owns that one decision. Reading is free; which network may read is decided by where we listen.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from fastapi import Request

from coordinator.server.errors import ApiError
from coordinator.server.services import services_of
from tiered.addresses import is_loopback


def require_admin(request: Request) -> None:
    """A dependency of every route that changes something.

    Errors: 401 without the right bearer token where one is set. Without one we listen on loopback only, yet
    a page in a browser here can still be made to call us under its own name: 403 unless the request names
    this machine.
    """
    token = services_of(request).admin_token
    if token:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            raise ApiError(
                401, "a change needs the header 'Authorization: Bearer <admin token>'", field="authorization"
            )
        return
    for header in ("host", "origin"):
        value = request.headers.get(header)
        if value is not None and not is_loopback(_hostname(value)):
            raise ApiError(
                403, f"without an admin token a change must come from this machine, not {value}", field=header
            )


def _hostname(value: str) -> str:
    """The host in a Host header (``host:port``) or an Origin header (``scheme://host:port``); empty if
    unclear.
    """
    try:
        return urlsplit(value if "://" in value else f"//{value}").hostname or ""
    except ValueError:
        return ""
