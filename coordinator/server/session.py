"""A browser's session: a cookie that says who logged in, signed, so that every replica can read it.

Owns the cookie's text. It holds no token: a browser sends cookies of one port to every port of that host. A session
ends with the browser, after SESSION_S, when the tenant's token is revoked or expires, and when a token of the
settings is changed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from typing import Final

import msgspec
from starlette.datastructures import Headers

from coordinator.server.caller import Caller, CallerKind
from coordinator.server.known_tokens import KnownTokens, same
from tiered.cluster.access import digest_of
from tiered.types import TenantId

COOKIE: Final = "tiered_session"
SESSION_S: Final = 12 * 3600
"""A working day."""

_COOKIE_CHARS_MAX: Final = 1024


class _Session(msgspec.Struct, frozen=True, array_like=True):
    """until: seconds since 1970; replicas' clocks may differ by minutes without harm. digest: a tenant's token's."""

    kind: CallerKind
    until: float
    digest: str = ""


class Sessions:
    """Signed with a key that follows from the settings' tokens, so that replicas agree without speaking of it."""

    def __init__(self, admin_token: str, read_token: str, known: KnownTokens) -> None:
        self._secret = f"{admin_token}\0{read_token}".encode()
        self._known = known

    @cached_property
    def _key(self) -> bytes:
        """Slow on purpose: whoever holds one session must not be able to guess the admin token by trying."""
        return hashlib.scrypt(self._secret, salt=b"tiered session", n=1 << 14, r=8, p=1, dklen=32)

    def open(self, caller: Caller, token: str) -> str:
        """The cookie's text for a caller that has just shown its token."""
        digest = digest_of(token) if caller.kind is CallerKind.TENANT else ""
        body = msgspec.json.encode(_Session(caller.kind, time.time() + SESSION_S, digest))
        return f"{_text(body)}.{_text(self._sign(body))}"

    def caller(self, cookie: str) -> Caller | None:
        """Who logged in; None for a session that is over, or none. May ask Redis. Errors: as of_digest()."""
        session = self._session(cookie)
        if session is None:
            return None
        if session.kind is not CallerKind.TENANT:
            return Caller(session.kind)
        grant = self._known.of_digest(session.digest)
        return None if grant is None else Caller(CallerKind.TENANT, TenantId(grant.tenant))

    def _session(self, cookie: str) -> _Session | None:
        body, _, signature = cookie.partition(".")
        if len(cookie) > _COOKIE_CHARS_MAX or not cookie.isascii():
            return None
        try:
            raw = base64.urlsafe_b64decode(body)
            if not same(signature, _text(self._sign(raw))):
                return None
            session = msgspec.json.decode(raw, type=_Session)
        except (ValueError, msgspec.MsgspecError):
            return None
        return session if time.time() < session.until else None

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")


def session_of(headers: Headers) -> str:
    """The text of our cookie, empty if there is none."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie is not None else ""


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()
