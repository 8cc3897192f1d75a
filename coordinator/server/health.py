"""``/healthz``, ``/readyz`` and ``/metrics``: for those who run the coordinator rather than use it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, Field

from coordinator.server.auth import WHOLE_CLUSTER
from coordinator.server.errors import ApiError, responses
from coordinator.server.services import ServicesDep
from coordinator.view.snapshot import Trouble

router = APIRouter(tags=["health"])


class HealthBody(BaseModel):
    status: str


class ReadinessBody(HealthBody):
    mirror_lag_s: float | None = Field(description="Age of what /v1/route knows of blocks; null until it was read.")


@router.get("/healthz")
async def get_health() -> HealthBody:
    """The process lives and answers."""
    return HealthBody(status="ok")


@router.get("/readyz", responses=responses(503))
def get_readiness(services: ServicesDep) -> ReadinessBody:
    """The last read of Redis succeeded, so what we say is current."""
    trouble = services.keeper.view.trouble
    if trouble is not None:  # not the view's reason: everybody may ask, and that says where Redis is
        why = "" if trouble is Trouble.NOT_READ_YET else "; the coordinator's log says why"
        raise ApiError(503, trouble.value + why, field="redis")
    facts = services.mirror_facts()
    lag_s = None if facts is None or facts.lag_s is None else round(facts.lag_s, 3)
    return ReadinessBody(status="ok", mirror_lag_s=lag_s)


@router.get("/metrics", response_class=Response, **WHOLE_CLUSTER)
def get_metrics(request: Request) -> Response:
    """Prometheus families, made from the view when they are asked for. A scraper sends a token like all callers."""
    registry: CollectorRegistry = request.app.state.metrics
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
