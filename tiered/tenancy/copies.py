"""Which tenants ask for two copies of their blocks; made once from all policies, since it is asked of every block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import TenantId


@dataclass(frozen=True, slots=True)
class TwoCopies:
    """by_default: whether tenants without a policy of their own do; exceptions: those of whom the opposite holds."""

    by_default: bool = False
    exceptions: frozenset[TenantId] = frozenset()

    def asked_by(self, tenant: TenantId) -> bool:
        return (tenant in self.exceptions) != self.by_default

    def __bool__(self) -> bool:
        """Whether any tenant may."""
        return self.by_default or bool(self.exceptions)


NO_SECONDS = TwoCopies()


def two_copies(policies: Mapping[TenantId, TenantPolicy]) -> TwoCopies:
    default = policies.get(DEFAULT_TENANT)
    by_default = default is not None and default.copies > 1
    named = {tenant for tenant, policy in policies.items() if (policy.copies > 1) != by_default}
    return TwoCopies(by_default, frozenset(named - {DEFAULT_TENANT}))
