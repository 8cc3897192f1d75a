"""Whose blocks a sweep notes as lost, when it takes the stamp of their last node away.

With replicas behind Redis what it has lies in two places as it is, and nobody's are noted.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiered.cluster.replicas import Replicas
from tiered.cluster.tenants import Tenants
from tiered.tenancy.copies import NO_SECONDS, TwoCopies, two_copies


@dataclass(frozen=True, slots=True)
class Seconds:
    tenants: Tenants
    replicas: Replicas

    def asked(self) -> TwoCopies:
        """Blocking. Errors: UNREADABLE."""
        two = two_copies(self.tenants.readable()[0])
        return NO_SECONDS if two and self.replicas.fewest() > 0 else two
