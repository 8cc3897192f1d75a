"""``/v1/history`` and ``/v1/alerts``: the last minutes as this replica saw them, and what needs a person's eye."""

from __future__ import annotations

import time

from fastapi import APIRouter
from pydantic import BaseModel, Field

from coordinator.server.auth import CallerDep, ViewDep
from coordinator.server.caller import Caller
from coordinator.server.services import Services, ServicesDep
from coordinator.server.usage import TokensBody, tokens_body
from coordinator.view.alerts import Alert, Found, Level, alerts
from coordinator.view.history import STEP_S

router = APIRouter(prefix="/v1", tags=["usage"])


class PointBody(BaseModel):
    age_s: float = Field(description="Since its end.")
    seconds: float = Field(description="How long it is.")
    tokens: TokensBody = Field(description="Asked and found in it.")
    hot_bytes: int | None = Field(description="At its end; null to a tenant's token.")
    redis_bytes: int | None


class HistoryBody(BaseModel):
    """Since this replica started, ten minutes at most. To a tenant's token, its own."""

    step_s: float
    points: list[PointBody] = Field(description="Oldest first.")


class AlertBody(BaseModel):
    level: Level
    about: str = Field(
        description="stale, leader, workers, lost, left, breaker, drain, books, corrupt, refused; there may be more."
    )
    text: str
    node: str | None
    age_s: float | None = Field(description="Since it happened last; null where that is not known.")


class AlertsBody(BaseModel):
    alerts: list[AlertBody] = Field(description="The gravest first.")


@router.get("/history")
def get_history(services: ServicesDep, caller: CallerDep) -> HistoryBody:
    """How many tokens were asked for and found, a few seconds after the other."""
    now = services.keeper.now()
    return HistoryBody(
        step_s=STEP_S,
        points=[
            PointBody(
                age_s=round(max(0.0, now - point.at), 3),
                seconds=round(point.seconds, 3),
                tokens=tokens_body(point.tokens_of(caller.tenant)),
                hot_bytes=point.hot_bytes if caller.sees_all else None,
                redis_bytes=point.redis_bytes if caller.sees_all else None,
            )
            for point in services.history.points
        ],
    )


@router.get("/alerts")
def list_alerts(services: ServicesDep, caller: CallerDep, view: ViewDep) -> AlertsBody:
    """What is broken, who gets less than was asked for, and who went; as far as the caller may see."""
    now = services.keeper.now()
    told = alerts(view, _found(services, caller, now), now=now, tenant=caller.tenant)
    return AlertsBody(alerts=[_alert_body(each) for each in told])


def _found(services: Services, caller: Caller, now: float) -> Found:
    corrupt_ages_s: list[float] = []
    if services.explainer is not None:
        view, wall = services.keeper.view, time.time()
        corrupt_ages_s = services.bad_blocks.ages_s(services.explainer, view, caller.tenant, now=now, wall=wall)
    points, gone = services.history.points, services.history.gone(now)
    if not caller.sees_all:
        return Found(points=points, gone=gone, corrupt_ages_s=corrupt_ages_s)
    standing, findings = services.standing(), services.findings()
    leads = standing is not None and standing.is_leader
    return Found(
        points=points,
        gone=gone,
        # Who led once has findings that nobody puts right any more.
        conserved=findings.conserved if findings is not None and leads else None,
        leader_known=None if standing is None else standing.leader is not None,
        corrupt_ages_s=corrupt_ages_s,
    )


def _alert_body(alert: Alert) -> AlertBody:
    age_s = None if alert.age_s is None else round(alert.age_s, 3)
    return AlertBody(level=alert.level, about=alert.about, text=alert.text, node=alert.node, age_s=age_s)
