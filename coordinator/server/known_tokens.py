"""What this replica knows of the tenants' tokens, and how long it may go by it.

Owns those two durations. Requests are answered from memory while that is fresh; a token not known yet is asked for in
Redis at once, so that one made at another replica works here immediately.
"""

from __future__ import annotations

import hmac
import threading
from dataclasses import dataclass, replace
from typing import Final

from tiered.clock import Clock
from tiered.cluster.access import NO_GRANTS, AccessTokens, Grant, Grants, digest_of, looks_like_token
from tiered.errors import TierError, TierUnavailable
from tiered.log import get_logger
from tiered.types import TenantId

log = get_logger(__name__)

FRESH_S: Final = 1.0
"""A revoked token works no longer than this, where Redis answers."""

BOUND_S: Final = 300.0
"""With Redis away, known tokens go on working this long: tenants should still see their numbers during a failover or
a restart, and a replica that is cut off should not honour for ever what was revoked behind its back."""

RETRY_S: Final = 1.0
"""After Redis did not answer, nobody waits for it again within this time."""


@dataclass(frozen=True, slots=True)
class _Known:
    """taken_at: on our own clock, when the reading began."""

    grants: Grants
    taken_at: float


class KnownTokens:
    """Any number of threads may ask; one of them at a time asks Redis."""

    def __init__(self, tokens: AccessTokens, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._known: _Known | None = None
        self._failed_at: float | None = None
        self._reading = threading.Lock()

    def find(self, token: str) -> Grant | None:
        """Whose token it is; None if it is nobody's, or no longer. May ask Redis.

        Errors: TierError if Redis would have to be asked, and does not answer.
        """
        return self.of_digest(digest_of(token)) if looks_like_token(token) else None

    def of_digest(self, digest: str) -> Grant | None:
        """As find(), for who kept the token's digest only."""
        now = self._clock.now()
        if self._is_fresh(now):
            found = self._held(digest, now)
            if found is not None:
                return found
        try:
            self.refresh(not_before=now)
        except TierError:
            if not self._is_bearable(now):
                raise
            found = self._held(digest, now)
            if found is None:  # it may have been made since
                raise
            return found
        return self._held(digest, self._clock.now())

    def needs_redis(self, token: str) -> bool:
        """Whether find() would ask Redis now."""
        now = self._clock.now()
        return looks_like_token(token) and not (self._is_fresh(now) and self._held(digest_of(token), now))

    def refresh(self, *, not_before: float | None = None) -> None:
        """Read what changed, unless a reading begun after not_before is there already.

        Errors: TierError; TierUnavailable, without asking, shortly after a failure.
        """
        with self._reading:
            now = self._clock.now()
            if not_before is not None and self._known is not None and self._known.taken_at > not_before:
                return
            if self._failed_at is not None and now - self._failed_at < RETRY_S:
                raise TierUnavailable("redis: it did not answer a moment ago")
            try:
                grants = self._tokens.read(self._known.grants if self._known else NO_GRANTS)
            except TierError as error:
                log.warning("tokens cannot be read", reason=str(error))
                self._failed_at = self._clock.now()
                raise
            self._known, self._failed_at = _Known(grants, now), None

    def forget(self, tenant: TenantId, token_id: str = "") -> None:
        """What was just revoked in Redis, one token or all of the tenant's: here it ends at once, even if Redis does
        not answer from now on."""
        with self._reading:
            if self._known is not None:
                grants = self._known.grants
                rest = {
                    digest: grant
                    for digest, grant in grants.by_digest.items()
                    if grant.tenant != tenant or token_id not in ("", grant.id)
                }
                self._known = replace(self._known, grants=replace(grants, by_digest=rest))

    def _held(self, digest: str, now: float) -> Grant | None:
        known = self._known
        grant = known.grants.by_digest.get(digest) if known else None
        if known is None or grant is None:
            return None
        return grant if grant.holds_at(known.grants.server_ms + (now - known.taken_at) * 1000) else None

    def _is_fresh(self, now: float) -> bool:
        return self._known is not None and now - self._known.taken_at < FRESH_S

    def _is_bearable(self, now: float) -> bool:
        return self._known is not None and now - self._known.taken_at < BOUND_S


def same(given: str, expected: str) -> bool:
    """Compare two secrets in a time that does not depend on where they differ; an empty one matches nothing."""
    return bool(expected) and hmac.compare_digest(given.encode(), expected.encode())
