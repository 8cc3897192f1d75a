"""Who is asking: the tenant of a request, from its API key alone.

Owns what is let in when there are keys, and when there are none. Where keys come from is ``keys``' business.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers

from tiered.addresses import is_loopback
from tiered.serving.errors import ApiError
from tiered.serving.keys import Keys
from tiered.tenancy.policy import DEFAULT_TENANT
from tiered.types import TenantId

_HOW = "send the header Authorization: Bearer KEY"


class Callers:
    """keys None: everybody is the tenant ``default``; is_local: only who is on this machine can reach us."""

    def __init__(self, keys: Keys | None, *, is_local: bool) -> None:
        self._keys = keys
        self._is_local = is_local

    def tenant(self, headers: Headers) -> TenantId:
        """Errors: ApiError 401 without a key, or with one that is not known; 403 for another site's page."""
        if self._keys is None:
            if self._is_local:
                _require_local(headers)
            return DEFAULT_TENANT
        given = headers.get("authorization", "")
        scheme, _, key = given.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _unauthorised(f"this needs an API key: {_HOW}")
        tenant = self._keys.tenant(key.strip())
        if tenant is None:
            raise _unauthorised("this API key is not known here, or no longer")
        return tenant


def _require_local(headers: Headers) -> None:
    """A browser on this machine must not ask on behalf of a page from elsewhere."""
    for header in ("host", "origin"):
        value = headers.get(header)
        if value is not None and not is_loopback(_hostname(value)):
            raise ApiError(
                403,
                "without keys only this machine and its own pages are answered; set auth.keys_file, or say "
                "--allow-anonymous, to answer others",
                param=header,
            )


def _hostname(value: str) -> str:
    """The host in a Host header (``host:port``) or an Origin header (``scheme://host:port``); empty if unclear."""
    try:
        return urlsplit(value if "://" in value else f"//{value}").hostname or ""
    except ValueError:
        return ""


def _unauthorised(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
