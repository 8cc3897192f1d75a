"""Bytes of the hot tier per tenant: charge, release, and what may still be admitted (I5).

A block that several tenants use is charged to them in equal parts, to the byte: the parts of a block always sum to
its size, whoever comes and goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tiered.errors import IllegalTransition
from tiered.tenancy.policy import DEFAULT_TENANT, Share, TenantPolicy
from tiered.types import TenantId

UNNAMED_MAX: Final = 4_096
"""Tenants without a policy of their own whose bounds are kept ready, beside those that are charged."""


def parts(block_bytes: int, n_tenants: int) -> Iterator[int]:
    """What each of the tenants of one block pays, in their order: equal parts, the first ones a byte more."""
    part, rest = divmod(block_bytes, n_tenants)
    return (part + (index < rest) for index in range(n_tenants))


class HotLedger:
    """Charges blocks of one pool to tenants; each tenant's bounds come from its policy, or the default one, and from
    the share of its totals that this pool was lent."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._used: dict[TenantId, int] = {}
        self._n_blocks: Counter[TenantId] = Counter()
        self._policies: dict[TenantId, TenantPolicy] = {}
        self._derived: dict[TenantId, TenantPolicy] = {}
        self._limits: dict[TenantId, int | None] = {}
        self._shares: Mapping[TenantId, Share] | None = None

    def set_policies(
        self, policies: Mapping[TenantId, TenantPolicy], shares: Mapping[TenantId, Share] | None = None
    ) -> None:
        """shares: of the tenants' totals, as lent to this pool; None where it is the only one there is."""
        self._policies = dict(policies)
        self._shares = shares
        self._derived = {}
        self._limits = {}

    def policy(self, tenant: TenantId) -> TenantPolicy:
        """The tenant's own policy, else the default one under the tenant's name."""
        found = self._policies.get(tenant) or self._derived.get(tenant)
        if found is None:
            default = self._policies.get(DEFAULT_TENANT) or TenantPolicy(tenant=DEFAULT_TENANT)
            if len(self._derived) >= UNNAMED_MAX:
                self._forget_idle()
            found = self._derived[tenant] = default.of_unnamed(tenant)
        return found

    def is_named(self, tenant: TenantId) -> bool:
        """Whether it has a policy of its own."""
        return tenant in self._policies

    def _forget_idle(self) -> None:
        """What was worked out for tenants without a policy that are charged nothing: there is no end of names."""
        self._derived = {t: policy for t, policy in self._derived.items() if t in self._used}
        self._limits = {t: limit for t, limit in self._limits.items() if t in self._used or t in self._policies}

    def limit_bytes(self, tenant: TenantId) -> int | None:
        """The lowest of its bounds in bytes and in blocks and of its share; None for none."""
        if tenant not in self._limits:
            policy = self.policy(tenant)
            bounds = [] if policy.hot_limit_bytes is None else [policy.hot_limit_bytes]
            if policy.hot_limit_blocks is not None:
                bounds.append(policy.hot_limit_blocks * self.block_bytes)
            if policy.hot_total_limit_bytes is not None:
                bounds.append(self._lent_bytes(tenant, policy.hot_total_limit_bytes))
            self._limits[tenant] = min(bounds, default=None)
        return self._limits[tenant]

    def reserved_bytes(self, tenant: TenantId) -> int:
        """The highest of its promises in bytes and in blocks and of its share."""
        policy = self.policy(tenant)
        lent = policy.hot_total_reserved_bytes
        if lent and self._shares is not None:
            share = self._shares.get(tenant)
            lent = 0 if share is None else share.reserved_bytes
        return max(policy.hot_reserved_bytes, policy.hot_reserved_blocks * self.block_bytes, lent)

    def _lent_bytes(self, tenant: TenantId, total_bytes: int) -> int:
        """The pool's part of a total limit. Until a share is lent a tenant keeps what it has and takes nothing more,
        so that a bound that is new, or a share on its way, evicts nothing."""
        if self._shares is None:
            return total_bytes
        share = self._shares.get(tenant)
        return self.used_bytes(tenant) if share is None or share.limit_bytes is None else share.limit_bytes

    def used_bytes(self, tenant: TenantId) -> int:
        return self._used.get(tenant, 0)

    def used_blocks(self, tenant: TenantId) -> int:
        """Blocks it uses, shared ones counted whole."""
        return self._n_blocks[tenant]

    def tenants(self) -> Iterator[tuple[TenantId, int]]:
        """(tenant, used bytes) of all that are charged anything."""
        return iter(self._used.items())

    def is_alone(self, tenant: TenantId) -> bool:
        """Whether it is charged for all there is."""
        return len(self._used) == 1 and tenant in self._used

    def total_bytes(self) -> int:
        return sum(self._used.values())

    def excess_bytes(self, tenant: TenantId, *, asked_bytes: int = 0) -> int:
        """How far the tenant would stand above its limit with ``asked_bytes`` more; 0 within it."""
        limit = self.limit_bytes(tenant)
        return 0 if limit is None else max(0, self.used_bytes(tenant) + asked_bytes - limit)

    def charge(self, tenant: TenantId) -> None:
        """One block that the tenant alone uses."""
        self._used[tenant] = self._used.get(tenant, 0) + self.block_bytes
        self._n_blocks[tenant] += 1

    def release(self, tenant: TenantId) -> None:
        left = self._used.get(tenant, 0) - self.block_bytes
        if left > 0:
            self._used[tenant] = left
        else:
            self._add(tenant, -self.block_bytes)
        self._uncount(tenant)

    def recharge(self, before: Sequence[TenantId], after: Sequence[TenantId]) -> None:
        """The users of one block changed."""
        for tenant, part in zip(before, parts(self.block_bytes, len(before)), strict=True):
            self._add(tenant, -part)
            self._uncount(tenant)
        for tenant, part in zip(after, parts(self.block_bytes, len(after)), strict=True):
            self._add(tenant, part)
            self._n_blocks[tenant] += 1

    def _uncount(self, tenant: TenantId) -> None:
        self._n_blocks[tenant] -= 1
        if not self._n_blocks[tenant]:
            del self._n_blocks[tenant]

    def _add(self, tenant: TenantId, n_bytes: int) -> None:
        left = self._used.get(tenant, 0) + n_bytes
        if left < 0:
            raise IllegalTransition(f"tenant {tenant!r} releases more than it was charged")
        if left:
            self._used[tenant] = left
        else:
            self._used.pop(tenant, None)
