"""What routes ask about their caller: who it is, what it may see, whether it may change things.

Owns these dependencies. How a caller proves who it is, is :mod:`coordinator.server.credentials`' business, and that
nobody gets past without is :mod:`coordinator.server.gate`'s.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Depends, Path, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import AfterValidator, WithJsonSchema

from coordinator.server.caller import Caller
from coordinator.server.errors import ApiError
from coordinator.server.services import Services, services_of
from coordinator.view.snapshot import ClusterView
from coordinator.view.visible import view_of_tenant
from tiered.tenancy.policy import check_tenant_name
from tiered.types import TenantId

_BEARER: Final = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="The admin token (sees and changes everything), the read token, or a tenant's own token.",
)


async def caller_of(
    request: Request, token: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]
) -> Caller:
    """Who the gate found to be calling; token is here for the OpenAPI document alone."""
    caller = getattr(request.state, "caller", None)
    if not isinstance(caller, Caller):
        raise RuntimeError(f"{request.url.path} was reached past the gate")
    return caller


CallerDep = Annotated[Caller, Depends(caller_of)]


async def require_admin(caller: CallerDep) -> None:
    """A dependency of every route that changes something. Errors: 403 for a caller that may only read."""
    if not caller.may_change:
        raise ApiError(403, f"a change needs the admin token; this one is a {caller.kind}'s", field="authorization")


async def require_sees_all(caller: CallerDep) -> None:
    """A dependency of routes that say something of the whole cluster. Errors: 403 for a tenant's token."""
    if not caller.sees_all:
        raise ApiError(403, "this needs the admin or the read token, not a tenant's", field="authorization")


CHANGE: Final[dict[str, Any]] = {"dependencies": [Depends(require_admin)]}
"""``@router.post("", **CHANGE)``: what every route that changes something says."""

WHOLE_CLUSTER: Final[dict[str, Any]] = {"dependencies": [Depends(require_sees_all)]}

TENANT_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
"""What :func:`check_tenant_name` accepts, for the OpenAPI document."""

TenantName = Annotated[
    str, AfterValidator(check_tenant_name), WithJsonSchema({"type": "string", "pattern": TENANT_PATTERN})
]
"""A tenant's name in a body or a query; a path has TenantPath."""

TenantPath = Annotated[TenantName, Path(alias="tenant", description="The tenant's name.")]


async def seen_tenant(name: TenantPath, caller: CallerDep) -> TenantId:
    """The tenant in the path, for a caller that may see it.

    Errors: 404 for any other, whether there is one of that name or not.
    """
    if not caller.may_see(name):
        raise unknown_tenant(name)
    return TenantId(name)


SeenTenant = Annotated[TenantId, Depends(seen_tenant)]


def unknown_tenant(name: str) -> ApiError:
    """The one answer to a name that is not there and to one that is another's."""
    return ApiError(404, f"tenant {name!r} has no policy and was never seen", field="tenant")


def require_known(name: str, services: Services) -> None:
    """For what a mistyped name would do in vain, or for ever. Errors: 404 for one that has no policy and was never
    seen, up to this moment."""
    if services.keeper.view.tenant(name) is not None or services.tenants.get(TenantId(name)) is not None:
        return
    services.keeper.refresh()
    if services.keeper.view.tenant(name) is None:
        raise unknown_tenant(name)


async def seen_view(request: Request, caller: CallerDep) -> ClusterView:
    """The current view, as far as the caller may see: a tenant sees itself alone in it."""
    view = services_of(request).keeper.view
    return view if caller.tenant is None else view_of_tenant(view, caller.tenant)


ViewDep = Annotated[ClusterView, Depends(seen_view)]
