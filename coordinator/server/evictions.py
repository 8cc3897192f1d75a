"""``/v1/evictions``: what left, was refused or was missed, of all nodes and of Redis; to look at or to follow."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from coordinator.server.auth import CallerDep, TenantName, unknown_tenant
from coordinator.server.errors import ApiError, responses
from coordinator.server.happenings import EventBody, ExplainerDep, SilentBody, event_bodies, silent_bodies
from coordinator.server.services import Services, ServicesDep
from coordinator.view.cursor import CURSOR_CHARS_MAX, Reached, decode_cursor, encode_cursor
from coordinator.view.explainer import REDIS
from coordinator.view.sentences import KNOWN

router = APIRouter(prefix="/v1/evictions", tags=["blocks"])

LIMIT_MAX: Final = 500
KINDS_MAX: Final = 16
ALL: Final = "all"

KINDS: Final = frozenset(what for _, what in KNOWN)

WORTH_KNOWING: Final = (
    "evicted",
    "parted",
    "uncopied",
    "refused",
    "missed",
    "corrupt",
    "torn",
    "failed",
    "expired",
    "cleared",
    "removed",
    "lost",
    "stray",
)
"""Without those by which a block came or stayed."""

Kind = Annotated[str, Field(pattern="^[a-z]{1,32}$")]


class EvictionsBody(BaseModel):
    events: list[EventBody] = Field(description="Newest first; oldest first where after was given.")
    after: str = Field(description="Give it with the next request to get what came since, and nothing else.")
    silent: list[SilentBody] = Field(description="Who could have known more and gave no answer.")


@router.get("", responses=responses(403, 404, 422))
def list_evictions(
    caller: CallerDep,
    services: ServicesDep,
    explainer: ExplainerDep,
    tenant: Annotated[TenantName | None, Query(description="Of its blocks alone.")] = None,
    node: Annotated[
        str | None, Query(max_length=255, description="What this node remembers alone; redis for Redis.")
    ] = None,
    what: Annotated[
        list[Kind] | None,
        Query(
            max_length=KINDS_MAX,
            description=f"These kinds alone; {ALL} for every kind. Without it: {', '.join(WORTH_KNOWING)}.",
        ),
    ] = None,
    after: Annotated[
        str | None, Query(max_length=CURSOR_CHARS_MAX, description="The after of an earlier answer.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="With after: of each source.")] = 100,
) -> EvictionsBody:
    """What happened of late. To follow it, give each answer's after with the next request."""
    if tenant is not None and not caller.may_see(tenant):
        raise ApiError(403, f"this token is tenant {caller.tenant}'s and sees nothing of others", field="tenant")
    _require_known(node, services)
    kinds = _kinds(what)
    events, reached, silent = explainer.recent(
        services.keeper.view,
        node=node,
        of_tenant=tenant or "",
        what=kinds,
        after=_reached(after),
        n_max=limit,
        tenant=caller.tenant,
    )
    if tenant is not None and after is None and not events and services.keeper.view.tenant(tenant) is None:
        raise unknown_tenant(tenant)
    return EvictionsBody(
        events=event_bodies(events if after is not None else reversed(events)),
        after=encode_cursor(reached),
        silent=silent_bodies(silent),
    )


def _kinds(what: list[str] | None) -> frozenset[str]:
    """Empty for all. Errors: ApiError 422."""
    if what is None:
        return frozenset(WORTH_KNOWING)
    unknown = sorted({*what} - KINDS - {ALL})
    if unknown:
        message = f"there is no kind {unknown[0]!r}; those there are: {ALL}, {', '.join(sorted(KINDS))}"
        raise ApiError(422, message, field="what")
    return frozenset() if ALL in what else frozenset(what)


def _reached(after: str | None) -> Reached | None:
    if after is None:
        return None
    try:
        return decode_cursor(after)
    except ValueError:
        raise ApiError(
            422, "it is not what an earlier answer said; leave it out to begin anew", field="after"
        ) from None


def _require_known(node: str | None, services: Services) -> None:
    names = {each.info.node for each in services.keeper.view.alive}
    if node is not None and node != REDIS and node not in names:
        raise ApiError(404, f"no node {node!r} is alive; name one that is, or redis", field="node")
