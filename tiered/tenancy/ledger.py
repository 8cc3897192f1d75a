"""Bytes of the hot tier per tenant: charge, release, and what may still be admitted (I5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tiered.errors import IllegalTransition
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import TenantId


class HotLedger:
    """Charges blocks of one pool to tenants; each tenant's bounds come from its policy, or the default one."""

    def __init__(self) -> None:
        self._used: dict[TenantId, int] = {}
        self._policies: dict[TenantId, TenantPolicy] = {}
        self._derived: dict[TenantId, TenantPolicy] = {}

    def set_policies(self, policies: Mapping[TenantId, TenantPolicy]) -> None:
        self._policies = dict(policies)
        self._derived = {}

    def policy(self, tenant: TenantId) -> TenantPolicy:
        """The tenant's own policy, else the default one under the tenant's name."""
        found = self._policies.get(tenant) or self._derived.get(tenant)
        if found is None:
            default = self._policies.get(DEFAULT_TENANT) or TenantPolicy(tenant=DEFAULT_TENANT)
            found = self._derived[tenant] = default.model_copy(update={"tenant": tenant})
        return found

    def used_bytes(self, tenant: TenantId) -> int:
        return self._used.get(tenant, 0)

    def tenants(self) -> Iterator[tuple[TenantId, int]]:
        """(tenant, used bytes) of all that are charged anything."""
        return iter(self._used.items())

    def total_bytes(self) -> int:
        return sum(self._used.values())

    def excess_bytes(self, tenant: TenantId, *, asked_bytes: int = 0) -> int:
        """How far the tenant would stand above its limit with ``asked_bytes`` more; 0 within it."""
        limit = self.policy(tenant).hot_limit_bytes
        return 0 if limit is None else max(0, self.used_bytes(tenant) + asked_bytes - limit)

    def charge(self, tenant: TenantId, block_bytes: int) -> None:
        self._used[tenant] = self._used.get(tenant, 0) + block_bytes

    def release(self, tenant: TenantId, block_bytes: int) -> None:
        left = self._used.get(tenant, 0) - block_bytes
        if left < 0:
            raise IllegalTransition(f"tenant {tenant!r} releases more than it was charged")
        if left:
            self._used[tenant] = left
        else:
            self._used.pop(tenant, None)
