"""The tenants' bearer tokens as the cluster shares them: who each one is, and until when.

Owns the hash of tokens. A token itself is never stored, only its SHA-256; it is shown once, to who made it. Times are
the server's own, so that no two machines' clocks are compared. How long a replica may go by what it read is
:mod:`coordinator.server.known_tokens`' question.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

import msgspec

from tiered.cluster.calls import Call, load, run
from tiered.cluster.connection import Client
from tiered.cluster.keys import Keys
from tiered.cluster.routing import Part
from tiered.types import TenantId

TOKENS_PER_TENANT_MAX: Final = 64

TOKEN_PREFIX: Final = "tiered_"
"""Tells a tenant's token from anything else at a glance, for people and for scanners of leaked secrets."""

_TOKEN_BYTES: Final = 32
_TOKEN_CHARS: Final = len(TOKEN_PREFIX) + 43
_ID_BYTES: Final = 6
_REVISION: Final = b":revision"

_GRANT: Final = load("grant")
_GRANTS: Final = load("grants")
_REVOKE: Final = load("revoke")


class Grant(msgspec.Struct, frozen=True):
    """What one token allows. Milliseconds since 1970 by the server's clock; expires_ms None: no end."""

    id: str
    tenant: str
    label: str
    created_ms: int
    expires_ms: int | None = None

    def holds_at(self, server_ms: float) -> bool:
        return self.expires_ms is None or server_ms < self.expires_ms


@dataclass(frozen=True, slots=True)
class Grants:
    """Every grant by the digest of its token, as they were at server_ms of the server's clock."""

    server_ms: int = 0
    revision: bytes = b""
    by_digest: Mapping[str, Grant] = field(default_factory=dict)


NO_GRANTS: Final = Grants()


class AccessTokens:
    """The shared record of tokens. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def create(
        self, tenant: TenantId, *, label: str = "", expires_s: float | None = None
    ) -> tuple[str, Grant] | None:
        """A new token and its grant; None if the tenant has TOKENS_PER_TENANT_MAX already."""
        token = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
        lives_ms = 0 if expires_s is None else max(1, round(expires_s * 1000))
        token_id = secrets.token_hex(_ID_BYTES)
        args: list[Part] = [digest_of(token), token_id, tenant, label, lives_ms, TOKENS_PER_TENANT_MAX]
        answer = run(self._client, _GRANT, [Call([self._keys.access_tokens()], args)])[0]
        return (token, _grant(answer)) if isinstance(answer, bytes) else None

    def read(self, known: Grants = NO_GRANTS) -> Grants:
        """All grants, expired ones too. What is in ``known`` is not sent again unless something changed."""
        call = Call([self._keys.access_tokens()], [known.revision])
        server_ms, revision, entries = cast(
            tuple[int, bytes, list[bytes] | None], run(self._client, _GRANTS, [call])[0]
        )
        if entries is None:
            return Grants(server_ms, revision, known.by_digest)
        pairs = zip(entries[::2], entries[1::2], strict=True)
        return Grants(server_ms, revision, {key.decode(): _grant(text) for key, text in pairs if key != _REVISION})

    def list(self, tenant: TenantId) -> list[Grant]:
        """The tenant's grants that hold, oldest first."""
        grants = self.read()
        theirs = [grant for grant in grants.by_digest.values() if grant.tenant == tenant]
        return sorted(
            (grant for grant in theirs if grant.holds_at(grants.server_ms)), key=lambda grant: grant.created_ms
        )

    def revoke(self, tenant: TenantId, token_id: str) -> bool:
        """False if the tenant has no such token."""
        return bool(token_id) and self._revoke(tenant, token_id) > 0

    def revoke_all(self, tenant: TenantId) -> int:
        """How many there were."""
        return self._revoke(tenant, "")

    def _revoke(self, tenant: TenantId, token_id: str) -> int:
        call = Call([self._keys.access_tokens()], [tenant, token_id])
        return cast(int, run(self._client, _REVOKE, [call])[0])


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def looks_like_token(text: str) -> bool:
    """Whether it can be a tenant's token at all: what cannot need not be looked up."""
    return len(text) == _TOKEN_CHARS and text.startswith(TOKEN_PREFIX)


def _grant(text: object) -> Grant:
    return msgspec.json.decode(cast(bytes, text), type=Grant)
