"""Gives tenants' policies back to a Redis that lost them: a server restarted empty, or flushed.

Without them no limit would hold. What is given back is what this coordinator last read; it never takes the place of a
policy that is there. An empty table that was always empty is left alone.

Every replica remembers, since the server has lost who led, too, and whoever leads next may have started a moment ago.
The leader gives back at once, another one round later, if nobody has by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiered.cluster.tenants import Tenants
from tiered.log import get_logger
from tiered.tenancy.policy import TenantPolicy

log = get_logger(__name__)


class RememberTask:
    def __init__(self, tenants: Tenants, *, leads: Callable[[], bool] = lambda: True) -> None:
        self._tenants = tenants
        self._leads = leads
        self._policies: Sequence[TenantPolicy] = ()
        self._capacity: int | None = None
        self._revision = 0
        self._has_waited = False

    def round(self) -> None:
        """One look, blocking. Errors: UNREADABLE."""
        revision = self._tenants.revision()
        if revision == 0 < self._revision:
            if not self._leads() and not self._has_waited:
                self._has_waited = True
                return
            self._give_back()
            revision = self._tenants.revision()
        self._has_waited = False
        if revision != self._revision:
            self._policies, self._capacity = self._remembered(), self._tenants.capacity()
            self._revision = revision

    def _remembered(self) -> Sequence[TenantPolicy]:
        """One that cannot be read is left aside, and the others are remembered all the same."""
        policies, unreadable = self._tenants.readable()
        for tenant, why in unreadable.items():
            log.warning("a policy cannot be read", tenant=tenant, why=why)
        return list(policies.values())

    def _give_back(self) -> None:
        """Two coordinators may both do so: who comes second finds each policy there."""
        n_given = self._tenants.give_back(self._policies)
        if self._capacity is not None and self._tenants.capacity() is None:
            self._tenants.set_capacity(self._capacity)
        log.warning("redis had forgotten the tenants' policies; given back", tenants=n_given)
