"""Who is calling, as a plain record; and what each kind of caller may see and change."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tiered.types import TenantId


class CallerKind(enum.StrEnum):
    """admin: sees and changes everything. reader: sees everything. tenant: sees itself. local: an admin by being on
    this machine, where no token is set."""

    ADMIN = "admin"
    READER = "reader"
    TENANT = "tenant"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Caller:
    """tenant is None unless kind is TENANT."""

    kind: CallerKind
    tenant: TenantId | None = None

    @property
    def sees_all(self) -> bool:
        return self.kind is not CallerKind.TENANT

    @property
    def may_change(self) -> bool:
        return self.kind in (CallerKind.ADMIN, CallerKind.LOCAL)

    @property
    def reading(self) -> Caller:
        """What a browser's session is good for: it sees as much, and a change needs the token itself."""
        return Caller(CallerKind.READER) if self.kind is CallerKind.ADMIN else self

    def may_see(self, tenant: str) -> bool:
        return self.sees_all or tenant == self.tenant
