"""Gives tenants' policies back to a Redis that lost them: a server restarted empty, or flushed.

Without them no limit would hold. What is given back is what this coordinator last read; it never takes the place of a
policy that is there. An empty table that was always empty is left alone, and so is one that went back a little, as in
a failover: its books are the same (:mod:`tiered.cluster.birth`), and what they say counts.

Every replica remembers, since the server has lost who led, too, and whoever leads next may have started a moment ago.
The leader gives back at once, another one round later, if nobody has by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiered.cluster.birth import Birth, Births
from tiered.cluster.tenants import Tenants
from tiered.log import get_logger
from tiered.tenancy.policy import TenantPolicy

log = get_logger(__name__)


class RememberTask:
    def __init__(self, tenants: Tenants, births: Births, *, leads: Callable[[], bool] = lambda: True) -> None:
        self._tenants = tenants
        self._births = births
        self._leads = leads
        self._policies: Sequence[TenantPolicy] = ()
        self._capacity: int | None = None
        self._known = (Birth(), 0)
        """The books that these are of, and their revision."""
        self._has_waited = False

    def round(self) -> None:
        """One look, blocking. Errors: UNREADABLE."""
        (known, known_revision), revision = self._known, self._tenants.revision()
        birth = self._births.read()
        # A snapshot from before the first policy has the same birth.
        if not birth.follows(known) or revision == 0 < known_revision:
            if not self._leads() and not self._has_waited:
                self._has_waited = True
                return
            self._give_back(known)
            birth = self._births.read()
        self._has_waited = False
        found = birth, self._tenants.revision()
        if found == self._known:
            return
        policies, capacity = self._remembered(), self._tenants.capacity()
        if self._births.read() == birth:  # else this may be what was left when the server lost all a moment ago
            self._policies, self._capacity, self._known = policies, capacity, found
            log.info("policies remembered", revision=found[1], tenants=len(policies))

    def _remembered(self) -> Sequence[TenantPolicy]:
        """One that cannot be read is left aside, and the others are remembered all the same."""
        policies, unreadable = self._tenants.readable()
        for tenant, why in unreadable.items():
            log.warning("a policy cannot be read", tenant=tenant, why=why)
        return list(policies.values())

    def _give_back(self, lost: Birth) -> None:
        """Two coordinators may both do so: who comes second finds each policy there."""
        n_given = self._tenants.give_back(self._policies, lost)
        if self._capacity is not None and self._tenants.capacity() is None:
            self._tenants.set_capacity(self._capacity)
        log.warning("redis had forgotten the tenants' policies; given back", tenants=n_given)
