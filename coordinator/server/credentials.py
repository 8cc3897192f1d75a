"""How a caller proves who it is: a bearer token, a browser's session, or being on this machine where none is set.

Owns these three and their order. Whether a path is open to everybody is :mod:`coordinator.server.gate`'s question.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from coordinator.server.caller import Caller, CallerKind
from coordinator.server.errors import ApiError
from coordinator.server.known_tokens import KnownTokens, same
from coordinator.server.session import Sessions
from tiered.addresses import is_loopback
from tiered.cluster.access import AccessTokens
from tiered.errors import TierError
from tiered.types import TenantId

_HOW: Final = "send the header 'Authorization: Bearer <token>'"
_LOCAL: Final = Caller(CallerKind.LOCAL)


class Credentials:
    """The two tokens of the settings and the tenants' own. Without the former we listen on loopback only (the
    settings see to that), and whoever is on this machine is an admin."""

    def __init__(self, *, admin_token: str, read_token: str, tokens: AccessTokens, known: KnownTokens) -> None:
        self._admin_token = admin_token
        self._read_token = read_token
        self.tokens: Final = tokens
        self.known: Final = known
        self.sessions: Final = Sessions(admin_token, read_token, known)

    @property
    def asked_for(self) -> bool:
        """Whether a caller needs a token at all."""
        return bool(self._admin_token)

    def revoke(self, tenant: TenantId, token_id: str) -> bool:
        """False if the tenant has no such token. Errors: TierError."""
        revoked = self.tokens.revoke(tenant, token_id)
        self.known.forget(tenant, token_id)
        return revoked

    def revoke_all(self, tenant: TenantId) -> None:
        """Errors: TierError."""
        self.tokens.revoke_all(tenant)
        self.known.forget(tenant)

    async def caller(self, headers: Headers, *, session: str = "") -> Caller:
        """Who sends these headers; session is a cookie's text where one counts.

        Errors: ApiError 401 without a token or with a wrong one, even where none is needed: who held a token that was
        revoked is not to become an admin by it. 403 for a page from elsewhere in a browser on this machine. 503 if a
        tenant's token cannot be checked because Redis is away.
        """
        given = headers.get("authorization")
        if given is not None:
            scheme, _, token = given.partition(" ")
            if scheme.lower() != "bearer":
                raise ApiError(401, f"{scheme[:32]!r} is not how this is done: {_HOW}", field="authorization")
            return await self._of_token(token.strip())
        if self.asked_for:
            caller = await self.of_session(session) if session else None
            if caller is None:
                raise ApiError(401, f"this needs a token: {_HOW}", field="authorization")
            return caller.reading
        for header in ("host", "origin"):
            value = headers.get(header)
            if value is not None and not is_loopback(_hostname(value)):
                raise ApiError(
                    403,
                    f"without tokens only this machine and its own pages are answered, not {value[:100]}; set "
                    "http.admin_token to allow more",
                    field=header,
                )
        return _LOCAL

    async def of_token(self, token: str) -> Caller | None:
        """Who holds it; None if nobody does. Errors: ApiError 503 as caller()."""
        is_admin, is_reader = same(token, self._admin_token), same(token, self._read_token)
        if is_admin or is_reader:
            return Caller(CallerKind.ADMIN if is_admin else CallerKind.READER)
        try:
            if self.known.needs_redis(token):
                grant = await run_in_threadpool(self.known.find, token)
            else:
                grant = self.known.find(token)
        except TierError:
            raise _unchecked() from None
        return None if grant is None else Caller(CallerKind.TENANT, TenantId(grant.tenant))

    async def of_session(self, session: str) -> Caller | None:
        """Who logged in. Errors: ApiError 503 as caller()."""
        try:
            return await run_in_threadpool(self.sessions.caller, session)
        except TierError:
            raise _unchecked() from None

    async def _of_token(self, token: str) -> Caller:
        caller = await self.of_token(token)
        if caller is None:
            raise ApiError(401, "this token is not valid here, or no longer", field="authorization")
        return caller


def _unchecked() -> ApiError:
    """Without the reason, which says where Redis is: who asks is nobody yet. The log has it."""
    return ApiError(503, "Redis did not answer, so this token could not be checked; try again", field="redis")


def _hostname(value: str) -> str:
    """The host in a Host header (``host:port``) or an Origin header (``scheme://host:port``); empty if unclear."""
    try:
        return urlsplit(value if "://" in value else f"//{value}").hostname or ""
    except ValueError:
        return ""
