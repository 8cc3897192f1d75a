"""``/v1/leader``: which replica does the periodic work, and what this one found when it started."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from coordinator.leader.stock import Stock
from coordinator.server.auth import WHOLE_CLUSTER
from coordinator.server.errors import responses
from coordinator.server.services import ServicesDep

router = APIRouter(prefix="/v1/leader", tags=["health"])


class LeaderBody(BaseModel):
    replica: str = Field(description="One life of one coordinator.")
    url: str = Field(description="Where others find it: its http.advertise_host.")
    token: int = Field(description="Grows with every reign; what an older leader writes late is refused.")


class DroppedBody(BaseModel):
    what: str = Field(description="policy, share, life or reservation.")
    name: str
    why: str


class RestoredBody(BaseModel):
    policies: int
    capacity_bytes: int | None = Field(description="Of the Redis tier; null for unbounded.")
    shares: int = Field(description="Nodes whose shares of totals go on.")
    lives: int = Field(description="Nodes whose lease was running.")


class StockBody(BaseModel):
    """What was found in the shared state at the start; null members before it could be read."""

    restored: RestoredBody | None
    dropped: list[DroppedBody]


class LeadershipBody(StockBody):
    replica: str = Field(description="This one.")
    is_leader: bool
    token: int = Field(description="Of this replica's reign; 0 while it does not lead.")
    leader: LeaderBody | None = Field(description="Who led when Redis was last heard; null for nobody.")


@router.get("", responses=responses(403), **WHOLE_CLUSTER)
def get_leader(services: ServicesDep) -> LeadershipBody:
    """Who leads, whether that is this replica, and what this replica restored or left aside when it started."""
    standing, stock = services.standing(), _stock_body(services.stock())
    leader = None if standing is None else standing.leader
    return LeadershipBody(
        replica="" if standing is None else standing.replica,
        is_leader=standing is not None and standing.is_leader,
        token=0 if standing is None else standing.token,
        leader=None if leader is None else LeaderBody(replica=leader.replica, url=leader.url, token=leader.token),
        restored=stock.restored,
        dropped=stock.dropped,
    )


def _stock_body(stock: Stock | None) -> StockBody:
    if stock is None:
        return StockBody(restored=None, dropped=[])
    return StockBody(
        restored=RestoredBody(
            policies=stock.n_policies,
            capacity_bytes=stock.capacity_bytes,
            shares=stock.n_shares,
            lives=stock.n_lives,
        ),
        dropped=[DroppedBody(what=each.what, name=each.name, why=each.why) for each in stock.dropped],
    )
