"""``/v1/tenants``: what each tenant was promised, and what it uses.

A change is visible in the answer to the next request: the view is read again before the change is answered. It is
decided upon one revision of all policies; if another replica changes one meanwhile, it is decided anew, so that no
two together promise more than there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator.server.auth import CHANGE, SeenTenant, TenantPath, ViewDep, unknown_tenant
from coordinator.server.clear import clear_everywhere
from coordinator.server.errors import ApiError, invalid, responses
from coordinator.server.promises import Capacity, overpromise, rooms_of
from coordinator.server.services import Services, ServicesDep
from coordinator.server.usage import TokensBody, tokens_body
from coordinator.view.snapshot import ClusterView, TenantView
from tiered.cluster.clears import ClearRequest
from tiered.cluster.tenants import RevisionMoved, UnreadablePolicy
from tiered.tenancy.policy import DEFAULT_TENANT, Blocks, Bytes, Copies, RedisCodec, TenantPolicy
from tiered.types import TenantId

router = APIRouter(prefix="/v1/tenants", tags=["tenants"])

CHANGE_ATTEMPTS: Final = 5
"""An attempt takes milliseconds, and people change policies: each further one is for a change in just those."""


class HotUseBody(BaseModel):
    used_bytes: int
    blocks: int


class RedisUseBody(BaseModel):
    used_bytes: int
    pending_bytes: int = Field(description="Reserved and not yet committed; counts against the limit.")
    blocks: int


class SecondsBody(BaseModel):
    """As the nodes found it when they looked last; each looks at all its blocks again and again."""

    second_blocks: int = Field(description="Blocks that are hot and in Redis at once.")
    second_bytes: int = Field(description="Of what is charged in Redis, what is for those.")
    redis_only_blocks: int = Field(description="Blocks in Redis alone: one place, unless it has replicas.")
    single_blocks: int = Field(description="Blocks that one node alone has: a second is on its way, or refused.")


class PressureBody(BaseModel):
    """Blocks of the hot tier, counted by the nodes listed since each started; a node's restart lowers the sums."""

    evicted_blocks: int
    suffered_blocks: int = Field(description="Of those evicted, how many left for another tenant.")
    caused_blocks: int = Field(description="Of other tenants', how many left for this one.")
    refused_blocks: int = Field(description="That found no room, for want of quota or of anything that might leave.")


class TenantBody(BaseModel):
    policy: TenantPolicy = Field(description="The bounds in force.")
    named: bool = Field(description="false: seen, but without a policy; it lives under the default's.")
    hot: HotUseBody
    redis: RedisUseBody
    tokens: TokensBody
    hot_reserved_in_force_bytes: int = Field(
        default=0,
        description="What nodes alive keep for it of its reservations in the hot tier; less than was promised while "
        "nodes are missing.",
    )
    hot_lent_bytes: int | None = Field(
        default=None, description="What nodes were lent of hot_total_limit_bytes; null where there is no such limit."
    )
    redis_limit_in_force_bytes: int | None = Field(
        default=None, description="redis_limit_bytes, or the default's where that is null; null: no limit."
    )
    hot_borrowed_bytes: int = Field(default=0, description="Held beyond its reservations; others may ask it back.")
    hot_idle_reserved_bytes: int = Field(
        default=0, description="Kept for it and not used by it: lent to others until it asks."
    )
    pressure: PressureBody
    seconds: SecondsBody | None = Field(default=None, description="null: it asks for one copy of each block.")


class TenantsBody(BaseModel):
    tenants: list[TenantBody]


class PolicyChange(BaseModel):
    """The fields of a policy, each optional. null lifts a limit; redis_limit_bytes is the default's then."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tenant: str | None = Field(default=None, description="If given, the name in the path.")
    hot_reserved_bytes: Bytes = 0
    hot_limit_bytes: Bytes | None = None
    hot_reserved_blocks: Blocks = 0
    hot_limit_blocks: Blocks | None = None
    hot_total_reserved_bytes: Bytes = 0
    hot_total_limit_bytes: Bytes | None = None
    redis_reserved_bytes: Bytes = 0
    redis_limit_bytes: Bytes | None = None
    redis_ttl_s: float | None = Field(default=None, gt=0, le=1e9)
    weight: float = Field(default=1.0, gt=0, le=1_000)
    over_quota: Literal["evict_own", "refuse"] = "evict_own"
    sharing: str = "private"
    redis_codec: RedisCodec = "none"
    copies: Copies = 1

    def upon(self, current: TenantPolicy) -> TenantPolicy:
        """The policy with the given fields changed, and those left out as they are. Errors: ApiError."""
        if self.tenant is not None and self.tenant != current.tenant:
            message = f"the body names {self.tenant!r}, the path {current.tenant!r}"
            raise ApiError(422, message, field="tenant")
        given = self.model_dump(exclude_unset=True, exclude={"tenant"})
        return _policy(current.model_dump() | given)


@router.get("")
def list_tenants(view: ViewDep) -> TenantsBody:
    """Every tenant that has a policy or was seen, by name; the default is always among them."""
    return TenantsBody(tenants=[_tenant_body(tenant) for tenant in view.tenants])


@router.get("/{tenant}", responses=responses(404))
def get_tenant(name: SeenTenant, view: ViewDep) -> TenantBody:
    """The bounds in force, what it holds, and where its tokens were found."""
    return _answer(name, view)


@router.post("", status_code=201, responses=responses(401, 409, 422, 503), **CHANGE)
def create_tenant(policy: TenantPolicy, services: ServicesDep, response: Response) -> TenantBody:
    """Give a tenant a policy of its own."""

    def create(revision: int) -> None:
        if not services.tenants.exists(TenantId(policy.tenant)):
            _refuse_overpromise(policy, services)
        if not services.tenants.create(policy, revision=revision):
            message = f"tenant {policy.tenant!r} has a policy already; change it with PUT or PATCH"
            raise ApiError(409, message, field="tenant")

    _decide_upon_a_revision(create, services)
    response.headers["Location"] = f"{router.prefix}/{policy.tenant}"
    return _after_change(policy.tenant, services)


@router.put("/{tenant}", responses=responses(401, 404, 422, 503), **CHANGE)
def replace_tenant(name: TenantPath, change: PolicyChange, services: ServicesDep) -> TenantBody:
    """Replace the policy; what is left out falls back to its default."""

    def replace(revision: int) -> None:
        _require_named(name, services)
        _store(change.upon(TenantPolicy(tenant=name)), revision, services)

    _decide_upon_a_revision(replace, services)
    return _after_change(name, services)


@router.patch("/{tenant}", responses=responses(401, 404, 409, 422, 503), **CHANGE)
def change_tenant(name: TenantPath, change: PolicyChange, services: ServicesDep) -> TenantBody:
    """Change the given fields; what is left out stays."""
    _decide_upon_a_revision(
        lambda revision: _store(change.upon(_policy_of(name, services)), revision, services), services
    )
    return _after_change(name, services)


@router.delete("/{tenant}", status_code=204, responses=responses(401, 404, 409, 503), **CHANGE)
def delete_tenant(name: TenantPath, services: ServicesDep) -> None:
    """Take the policy away, and the tenant's tokens: a later tenant of that name is somebody else.

    What the tenant holds stays and comes under the default's policy.
    """
    if name == DEFAULT_TENANT:
        raise ApiError(409, "the default tenant bounds every unnamed one: change it, it cannot go", field="tenant")
    with services.changing:
        _require_named(name, services)
        services.credentials.revoke_all(TenantId(name))
        if not services.tenants.delete(TenantId(name)):
            raise _not_named(name)
    services.keeper.refresh()


class ClearedBody(BaseModel):
    blocks: int = Field(description="Blocks in Redis that the tenant let go of; what others use too stays for them.")


@router.delete("/{tenant}/blocks", responses=responses(401, 404, 429, 503), **CHANGE)
def clear_tenant(name: TenantPath, services: ServicesDep) -> ClearedBody:
    """Let a tenant go of all its blocks: those in Redis now, those in the nodes' pools within a second. As POST
    /v1/clear."""
    return ClearedBody(blocks=clear_everywhere(ClearRequest("tenant", name), services))


def _require_named(name: str, services: Services) -> None:
    if not services.tenants.exists(TenantId(name)):
        raise _not_named(name)


def _policy_of(name: str, services: Services) -> TenantPolicy:
    try:
        policy = services.tenants.get(TenantId(name))
    except UnreadablePolicy as error:
        message = f"{error}; replace it with PUT, or take it away: tiered tenants delete {name}"
        raise ApiError(409, message, field="tenant") from None
    if policy is None:
        raise _not_named(name)
    return policy


def _not_named(name: str) -> ApiError:
    message = f"tenant {name!r} has no policy; give it one: tiered tenants create {name}, or POST {router.prefix}"
    return ApiError(404, message, field="tenant")


def _decide_upon_a_revision(change: Callable[[int], None], services: Services) -> None:
    """change: reads, decides and writes, the last only at the revision that it is given. Errors: ApiError."""
    for _ in range(CHANGE_ATTEMPTS):
        with services.changing:
            try:
                return change(services.tenants.revision())
            except RevisionMoved:
                continue
    message = f"nothing was changed: {CHANGE_ATTEMPTS} times, others' changes of policies came in between; try again"
    raise ApiError(503, message)


def _store(policy: TenantPolicy, revision: int, services: Services) -> None:
    _refuse_overpromise(policy, services)
    if not services.tenants.replace(policy, revision=revision):
        raise _not_named(policy.tenant)


def _refuse_overpromise(policy: TenantPolicy, services: Services) -> None:
    alive = services.keeper.view.alive
    capacity = Capacity(nodes=rooms_of(alive), redis_bytes=services.tenants.capacity())
    refusal = overpromise(policy, services.tenants.readable()[0].values(), capacity)
    if refusal is not None:
        raise ApiError(422, str(refusal), field=refusal.field)


def _policy(fields: dict[str, Any]) -> TenantPolicy:
    try:
        return TenantPolicy.model_validate(fields)
    except ValidationError as error:
        raise invalid(error) from None


def _after_change(name: str, services: Services) -> TenantBody:
    view = services.keeper.refresh()
    if view.stale:
        message = f"the change of tenant {name!r} was made, but Redis went away before it could be read back"
        raise ApiError(503, message)
    return _answer(name, view)


def _answer(name: str, view: ClusterView) -> TenantBody:
    tenant = view.tenant(name)
    if tenant is None:
        raise unknown_tenant(name)
    return _tenant_body(tenant)


def _tenant_body(tenant: TenantView) -> TenantBody:
    return TenantBody(
        policy=tenant.policy,
        named=tenant.named,
        hot=HotUseBody(used_bytes=tenant.hot.used_bytes, blocks=tenant.hot.blocks),
        redis=RedisUseBody(
            used_bytes=tenant.redis.used_bytes,
            pending_bytes=tenant.redis.pending_bytes,
            blocks=tenant.redis.blocks,
        ),
        tokens=tokens_body(tenant.tokens),
        hot_reserved_in_force_bytes=tenant.hot_reserved_in_force_bytes,
        hot_lent_bytes=tenant.hot_lent_bytes,
        redis_limit_in_force_bytes=tenant.redis_limit_in_force_bytes,
        hot_borrowed_bytes=tenant.hot_borrowed_bytes,
        hot_idle_reserved_bytes=tenant.hot_idle_reserved_bytes,
        pressure=PressureBody(
            evicted_blocks=tenant.pressure.evicted_blocks,
            suffered_blocks=tenant.pressure.suffered_blocks,
            caused_blocks=tenant.pressure.caused_blocks,
            refused_blocks=tenant.pressure.refused_blocks,
        ),
        seconds=_seconds_body(tenant) if tenant.policy.copies > 1 else None,
    )


def _seconds_body(tenant: TenantView) -> SecondsBody:
    return SecondsBody(
        second_blocks=tenant.seconds.second_blocks,
        second_bytes=tenant.seconds.second_bytes,
        redis_only_blocks=tenant.redis_only_blocks,
        single_blocks=tenant.seconds.single_blocks,
    )
