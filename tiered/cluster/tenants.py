"""The tenants' policies as the cluster shares them, and the limits that the ledger's scripts read.

Owns the tenants hash, its revision and the limits hash; whether a policy makes sense beside the others is the
coordinator's question. The default tenant's policy exists whether stored or not. A tenant without a Redis limit of
its own is under the default tenant's.

Policies and limits carry different hash tags, so one MULTI over both needs a single server; on a Redis Cluster the
limits would have to follow in a second step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import redis

from tiered.cluster.connection import command, translated
from tiered.cluster.keys import Keys
from tiered.errors import TierTimeout
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import TenantId

_ATTEMPTS_MAX: Final = 16
"""Of one change: each failed attempt means that another writer's change went through."""

_DEFAULT: Final = "*"
_CAPACITY: Final = ":capacity"

_Pipeline: TypeAlias = redis.client.Pipeline


class Tenants:
    """The shared record of tenants. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def list(self) -> list[TenantPolicy]:
        """All policies, the default one included, ordered by name."""
        return sorted(self.policies().values(), key=lambda policy: policy.tenant)

    def policies(self) -> dict[TenantId, TenantPolicy]:
        stored: dict[bytes, bytes] = command(self._client, "HGETALL", self._keys.tenants())
        policies = {DEFAULT_TENANT: TenantPolicy(tenant=DEFAULT_TENANT)}
        for name, text in stored.items():
            policies[TenantId(name.decode())] = TenantPolicy.model_validate_json(text)
        return policies

    def get(self, tenant: TenantId) -> TenantPolicy | None:
        text: bytes | None = command(self._client, "HGET", self._keys.tenants(), tenant)
        if text is not None:
            return TenantPolicy.model_validate_json(text)
        return TenantPolicy(tenant=tenant) if tenant == DEFAULT_TENANT else None

    def create(self, policy: TenantPolicy) -> bool:
        """False if the tenant exists already; the default one always does."""
        if policy.tenant == DEFAULT_TENANT:
            return False
        return self._change(TenantId(policy.tenant), lambda exists: not exists, policy)

    def replace(self, policy: TenantPolicy) -> bool:
        """False if there is no such tenant."""
        is_default = policy.tenant == DEFAULT_TENANT
        return self._change(TenantId(policy.tenant), lambda exists: exists or is_default, policy)

    def delete(self, tenant: TenantId) -> bool:
        """False if nothing was stored.

        The tenant's blocks stay, under the default policy from now on. Deleting the default tenant's policy brings
        the built-in one back.
        """
        return self._change(tenant, lambda exists: exists, None)

    def revision(self) -> int:
        """Grows with every change, so that a watcher polls one small value."""
        value: bytes | None = command(self._client, "GET", self._keys.tenants_revision())
        return int(value or 0)

    def set_capacity(self, capacity_bytes: int | None) -> None:
        """Bound the whole tier; None: unbounded. Keep it below the server's maxmemory, the books come on top."""
        with translated(), self._client.pipeline(transaction=True) as pipeline:
            _set_or_drop(pipeline, self._keys.limits(), _CAPACITY, capacity_bytes)
            command(pipeline, "INCR", self._keys.tenants_revision())
            pipeline.execute()

    def capacity(self) -> int | None:
        value: bytes | None = command(self._client, "HGET", self._keys.limits(), _CAPACITY)
        return None if value is None else int(value)

    def _change(self, tenant: TenantId, allowed: Callable[[bool], bool], policy: TenantPolicy | None) -> bool:
        """Store or, with None, delete a policy and its limits in one MULTI, if allowed(exists)."""
        tenants = self._keys.tenants()
        with translated(), self._client.pipeline(transaction=True) as pipeline:
            for _ in range(_ATTEMPTS_MAX):
                try:
                    pipeline.watch(tenants)  # type: ignore[no-untyped-call]
                    if not allowed(bool(command(pipeline, "HEXISTS", tenants, tenant))):
                        return False
                    pipeline.multi()
                    self._queue(pipeline, tenant, policy)
                    pipeline.execute()
                except redis.WatchError:
                    continue
                return True
        raise TierTimeout(f"redis: tenant {tenant!r} could not be changed, others changed tenants meanwhile")

    def _queue(self, pipeline: _Pipeline, tenant: TenantId, policy: TenantPolicy | None) -> None:
        limit_field = _DEFAULT if tenant == DEFAULT_TENANT else tenant
        limits = self._keys.limits()
        stored = None if policy is None else policy.model_dump_json()
        _set_or_drop(pipeline, self._keys.tenants(), tenant, stored)
        _set_or_drop(pipeline, limits, limit_field, None if policy is None else policy.redis_limit_bytes)
        _set_or_drop(pipeline, limits, f"o:{limit_field}", None if policy is None else policy.over_quota)
        command(pipeline, "INCR", self._keys.tenants_revision())


def _set_or_drop(pipeline: _Pipeline, key: bytes, field: str, value: str | int | None) -> None:
    if value is None:
        command(pipeline, "HDEL", key, field)
    else:
        command(pipeline, "HSET", key, field, value)
