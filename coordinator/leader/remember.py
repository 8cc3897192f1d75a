"""Gives tenants' policies back to a Redis that lost them: a server restarted empty, or flushed.

Without them no limit would hold. What is given back is what this coordinator last read; it never takes the place of a
policy that is there. An empty table that was always empty is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.cluster.tenants import Tenants
from tiered.log import get_logger
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy

log = get_logger(__name__)


class RememberTask:
    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._policies: Sequence[TenantPolicy] = ()
        self._capacity: int | None = None
        self._revision = 0

    def round(self) -> None:
        """One look, blocking. Errors: UNREADABLE."""
        revision = self._tenants.revision()
        if revision == 0 < self._revision:
            self._give_back()
            revision = self._tenants.revision()
        if revision != self._revision:
            self._policies, self._capacity = self._tenants.list(), self._tenants.capacity()
            self._revision = revision

    def _give_back(self) -> None:
        """Two coordinators may both do so: who comes second finds each policy there."""
        for policy in self._policies:
            if policy.tenant == DEFAULT_TENANT:
                self._tenants.replace(policy)
            else:
                self._tenants.create(policy)
        if self._capacity is not None:
            self._tenants.set_capacity(self._capacity)
        log.warning("redis had forgotten the tenants' policies; given back", tenants=len(self._policies))
