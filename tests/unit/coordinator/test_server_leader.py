"""``/v1/leader``, and what health, stats and metrics say of who leads."""

from __future__ import annotations

from dataclasses import replace

from fastapi.testclient import TestClient
from prometheus_client import generate_latest

from coordinator.leader.leading import LeaderView
from coordinator.leader.stock import Dropped, Stock
from coordinator.metrics import Sources, build_registry
from coordinator.server.services import Services
from coordinator.view.snapshot import ClusterView
from tiered.cluster.leadership import Leader

OTHER = Leader(7, "other-1", "http://127.0.0.1:2", 3.0)


def services_of(api: TestClient) -> Services:
    services = api.app.state.services  # type: ignore[attr-defined]
    assert isinstance(services, Services)
    return services


def test_a_replica_that_does_not_lead_says_who_does(api: TestClient) -> None:
    api.app.state.services = replace(  # type: ignore[attr-defined]
        services_of(api), standing=lambda: LeaderView("us-1", 0, OTHER)
    )
    said = api.get("/v1/leader").json()
    assert (said["replica"], said["is_leader"], said["token"]) == ("us-1", False, 0)
    assert said["leader"] == {"replica": "other-1", "url": "http://127.0.0.1:2", "token": 7}
    assert (said["restored"], said["dropped"]) == (None, [])
    stats = api.get("/v1/stats").json()
    assert (stats["is_leader"], stats["leader"], stats["leader_token"]) == (False, "other-1", 7)


def test_what_was_restored_and_dropped_at_the_start_is_shown(api: TestClient) -> None:
    stock = Stock(3, 1_000, 2, 4, (Dropped("share", "n1", "its life has ended"),))
    api.app.state.services = replace(services_of(api), stock=lambda: stock)  # type: ignore[attr-defined]
    said = api.get("/v1/leader").json()
    assert said["restored"] == {"policies": 3, "capacity_bytes": 1_000, "shares": 2, "lives": 4}
    assert said["dropped"] == [{"what": "share", "name": "n1", "why": "its life has ended"}]


def test_metrics_say_whether_we_lead_and_under_which_token() -> None:
    ours = LeaderView("us-1", 8, Leader(8, "us-1", "", 3.0))
    text = generate_latest(build_registry(Sources(ClusterView, standing=lambda: ours))).decode()
    assert "tiered_leader 1.0" in text
    assert "tiered_leader_token 8.0" in text
    nobody = LeaderView("us-1", 0, None)
    text = generate_latest(build_registry(Sources(ClusterView, standing=lambda: nobody))).decode()
    assert "tiered_leader 0.0" in text
