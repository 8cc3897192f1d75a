"""The tenants' policies as the cluster shares them, and the capacity of the Redis tier.

Owns the tenants hash and its revision; whether a policy makes sense beside the others is the coordinator's question,
and bringing the bounds to where the ledger's scripts read them is :mod:`tiered.cluster.allotments`'. The default
tenant's policy exists whether stored or not. A tenant without a Redis limit of its own is under the default tenant's.

Policies and bounds carry different hash tags, so on a Redis Cluster no step changes both. The policy is stored first;
should its writer die before the bounds have followed, the leader's next round brings them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from tiered.cluster import scripts
from tiered.cluster.allotments import Allotments
from tiered.cluster.birth import Birth
from tiered.cluster.calls import Call, load, run
from tiered.cluster.connection import Client, command
from tiered.cluster.keys import Keys
from tiered.errors import TieredError
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy, read_policies
from tiered.types import TenantId

_CAPACITY = "capacity"
_GIVE_BACK: Final = load("give_back")


class RevisionMoved(TieredError):
    """Another change came between what was read and what was to be written on that ground; nothing was written."""

    def __init__(self, tenant: TenantId, *, revision: int) -> None:
        super().__init__(f"the tenants' policies are no longer of revision {revision}")
        self.tenant = tenant
        self.revision = revision


class UnreadablePolicy(TieredError):
    """A tenant has a policy that this release cannot read, such as a later one's; it can be replaced or deleted."""

    def __init__(self, tenant: TenantId, reason: str) -> None:
        super().__init__(f"the policy of tenant {tenant!r} cannot be read: {reason}")
        self.tenant = tenant
        self.reason = reason


class Tenants:
    """The shared record of tenants. Errors of every method: TierError when Redis does not answer.

    revision: what a change was decided upon; RevisionMoved, and nothing is changed, if another came after it.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._allotments = Allotments(client, keys)

    def list(self) -> list[TenantPolicy]:
        """All policies, the default one included, ordered by name."""
        return sorted(self.policies().values(), key=lambda policy: policy.tenant)

    def policies(self) -> dict[TenantId, TenantPolicy]:
        stored: dict[bytes, bytes] = command(self._client, "HGETALL", self._keys.tenants())
        policies = {DEFAULT_TENANT: TenantPolicy(tenant=DEFAULT_TENANT)}
        for name, text in stored.items():
            policies[TenantId(name.decode())] = TenantPolicy.model_validate_json(text)
        return policies

    def readable(self) -> tuple[dict[TenantId, TenantPolicy], dict[TenantId, str]]:
        """As :meth:`policies`, but one that cannot be read, such as a later version's, is named with the reason."""
        stored: dict[bytes, bytes] = command(self._client, "HGETALL", self._keys.tenants())
        policies, unreadable = read_policies({TenantId(name.decode()): text for name, text in stored.items()})
        return {DEFAULT_TENANT: TenantPolicy(tenant=DEFAULT_TENANT)} | policies, unreadable

    def get(self, tenant: TenantId) -> TenantPolicy | None:
        """Errors: UnreadablePolicy."""
        text: bytes | None = command(self._client, "HGET", self._keys.tenants(), tenant)
        if text is None:
            return TenantPolicy(tenant=tenant) if tenant == DEFAULT_TENANT else None
        policies, unreadable = read_policies({tenant: text})
        if unreadable:
            raise UnreadablePolicy(tenant, unreadable[tenant])
        return policies[tenant]

    def exists(self, tenant: TenantId) -> bool:
        """Whether it has a policy, readable or not."""
        return tenant == DEFAULT_TENANT or bool(command(self._client, "HEXISTS", self._keys.tenants(), tenant))

    def create(self, policy: TenantPolicy, *, revision: int | None = None) -> bool:
        """False if the tenant exists already; the default one always does."""
        if policy.tenant == DEFAULT_TENANT:
            return False
        return self._change(policy, how="create", revision=revision)

    def give_back(self, policies: Iterable[TenantPolicy], lost: Birth) -> int:
        """Store at once what the server has lost, and of which books that was; how many. Of a tenant that has a
        policy again, that one stays."""
        stored = [part for policy in policies for part in (policy.tenant, policy.stored())]
        names = [self._keys.tenants(), self._keys.tenants_revision(), self._keys.shape()]
        n_stored = cast(int, run(self._client, _GIVE_BACK, [Call(names, [lost.to_note(), *stored])])[0])
        if n_stored:
            self._allotments.deal()
        return n_stored

    def replace(self, policy: TenantPolicy, *, revision: int | None = None) -> bool:
        """False if there is no such tenant."""
        how = "put" if policy.tenant == DEFAULT_TENANT else "replace"
        return self._change(policy, how=how, revision=revision)

    def delete(self, tenant: TenantId) -> bool:
        """False if nothing was stored.

        The tenant's blocks stay, under the default policy from now on. Deleting the default tenant's policy brings
        the built-in one back.
        """
        deleted = bool(scripts.change_policy(self._client, self._keys, tenant, how="delete"))
        if deleted:
            self._allotments.deal()
        return deleted

    def revision(self) -> int:
        """Grows with every change, so that a watcher polls one small value."""
        value: bytes | None = command(self._client, "GET", self._keys.tenants_revision())
        return int(value or 0)

    def set_capacity(self, capacity_bytes: int | None) -> None:
        """Bound the whole tier; None: unbounded. Keep it below the server's maxmemory, the books come on top."""
        if capacity_bytes is None:
            change: tuple[str | bytes | int, ...] = ("HDEL", self._keys.shape(), _CAPACITY)
        else:
            change = ("HSET", self._keys.shape(), _CAPACITY, capacity_bytes)
        # Before it too, so that no policy decided upon the old one passes for one decided upon the new one.
        command(self._client, "INCR", self._keys.tenants_revision())
        command(self._client, *change)
        command(self._client, "INCR", self._keys.tenants_revision())
        self._allotments.deal()

    def capacity(self) -> int | None:
        value: bytes | None = command(self._client, "HGET", self._keys.shape(), _CAPACITY)
        return None if value is None else int(value)

    def _change(self, policy: TenantPolicy, *, how: str, revision: int | None) -> bool:
        tenant = TenantId(policy.tenant)
        changed = scripts.change_policy(
            self._client, self._keys, tenant, how=how, policy=policy.stored(), revision=revision
        )
        if changed is None:
            assert revision is not None
            raise RevisionMoved(tenant, revision=revision)
        if changed:
            self._allotments.deal()
        return changed
