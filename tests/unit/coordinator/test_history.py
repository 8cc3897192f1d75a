"""The last minutes in memory, the alerts that follow from them, and the two routes that tell both."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from coordinator.view.alerts import Alert, Found, Level, alerts
from coordinator.view.bad_blocks import ASK_EVERY_S, KEPT_S, BadBlocks
from coordinator.view.cursor import Reached
from coordinator.view.explainer import Event, Explainer, Silent
from coordinator.view.history import GONE_KEPT_S, POINTS_MAX, STEP_S, Gone, History, Went
from coordinator.view.snapshot import ClusterView, Readings, Trouble, assemble
from coordinator.view.visible import view_of_tenant
from tests.support.redis_server import eventually
from tests.unit.coordinator.builders import node_stats, node_view, tokens
from tests.unit.coordinator.conftest import Parts
from tiered.types import (
    BlockHash,
    DrainProgress,
    DrainState,
    Epoch,
    Happening,
    NodeStats,
    NodeTraffic,
    NodeView,
    TenantId,
    TenantStats,
    TokenCounts,
)

A, B = TenantId("a"), TenantId("b")


def at(now: float, *nodes: NodeView, **retired: TokenCounts) -> ClusterView:
    past = {TenantId(name): counts for name, counts in retired.items()}
    return assemble(Readings(nodes=nodes, retired=past), taken_at=now)


def told(history: History, *views: ClusterView) -> History:
    for view in views:
        history.note(view)
    return history


def draining(left: int, stuck: int = 0, state: DrainState = DrainState.DRAINING) -> NodeStats:
    return NodeStats(drain=DrainProgress(state=state, left_blocks=left, stuck_blocks=stuck))


def test_a_point_holds_what_came_since_the_one_before_it() -> None:
    history = told(
        History(),
        at(0.0, a=tokens(hot=10), b=tokens(missed=5)),
        at(1.0, a=tokens(hot=11), b=tokens(missed=5)),  # too early for a point
        at(5.0, a=tokens(hot=30, peer=4), b=tokens(missed=5)),
    )
    (point,) = history.points
    assert (point.at, point.seconds) == (5.0, 5.0)
    assert point.tokens == {A: tokens(hot=20, peer=4)}  # b asked nothing
    assert point.tokens_of(None) == tokens(hot=20, peer=4)
    assert point.tokens_of(None) is point.tokens_of(None)  # who looks adds nothing up
    assert point.tokens_of(B) == TokenCounts()


def test_a_point_of_several_tenants_has_their_sum() -> None:
    before = at(0.0, a=tokens(hot=1), b=tokens(missed=5))
    history = told(History(), before, at(5.0, a=tokens(hot=3, redis=1), b=tokens(missed=9)))
    assert history.points[0].tokens_of(None) == tokens(hot=2, redis=1, missed=4)


def test_points_add_up_to_what_was_asked_and_are_bounded() -> None:
    history = History()
    for step in range(2 * POINTS_MAX):
        history.note(at(step * STEP_S, a=tokens(hot=step, missed=2 * step)))
    assert len(history.points) == POINTS_MAX
    assert all(point.tokens_of(A) == tokens(hot=1, missed=2) for point in history.points)


def test_counts_that_redis_lost_are_no_negative_numbers() -> None:
    history = told(History(), at(0.0, a=tokens(hot=100, missed=7)), at(5.0, a=tokens(hot=3, missed=9)))
    assert history.points[0].tokens == {A: tokens(missed=2)}


def test_a_stale_view_tells_nothing() -> None:
    view = at(0.0, node_view("n1"))
    history = told(History(), view, replace(at(6.0), trouble=Trouble.NO_ANSWER, reason="Redis is away"))
    assert history.points == ()
    assert history.gone(6.0) == ()


def test_a_node_whose_lease_lapsed_is_lost_until_it_is_back() -> None:
    history = told(History(), at(0.0, node_view("n1")), at(1.0, node_view("n1", alive=False)), at(2.0))
    assert history.gone(2.0) == (Gone("n1", Epoch(1), 1.0, Went.LAPSED),)
    assert history.gone(1.0 + GONE_KEPT_S + 1.0) == ()
    history.note(at(3.0, node_view("n1", epoch=2)))
    assert history.gone(3.0) == ()


def test_a_node_that_was_swept_between_two_looks_is_lost_all_the_same() -> None:
    history = told(History(), at(0.0, node_view("n1")), at(5.0))  # its lease had 5 s left
    assert [gone.how for gone in history.gone(5.0)] == [Went.LAPSED]


def test_a_node_that_stopped_in_order_has_left() -> None:
    history = told(History(), at(0.0, node_view("n1"), node_view("n2", stats=draining(3))), at(1.0))
    assert {gone.node: gone.how for gone in history.gone(1.0)} == {"n1": Went.LEFT, "n2": Went.DRAINED}


def test_nothing_is_said_while_nothing_is_wrong() -> None:
    stats = node_stats(a=TenantStats(tokens=tokens(hot=1)))
    view = at(0.0, node_view("n1", stats=stats))
    assert alerts(view, Found(conserved=True, leader_known=True), now=0.0) == []


def test_a_cluster_without_workers_says_whether_it_ever_had_any() -> None:
    (note,) = alerts(at(0.0), Found(), now=0.0)
    assert (note.level, note.about) == (Level.NOTE, "workers")  # an empty cluster is no fault
    assert "start one with `tiered-worker`" in note.text
    history = told(History(), at(0.0, node_view("n1")), at(1.0))
    listed = alerts(at(1.0, node_view("n1", alive=False)), Found(), now=1.0)
    swept = alerts(at(1.0), Found(gone=history.gone(1.0)), now=1.0)
    for said in (listed, swept):
        alarm = next(each for each in said if each.about == "workers")
        assert alarm.level is Level.ALARM
        assert "No worker is alive" in alarm.text


def test_of_workers_that_cannot_be_read_nobody_says_that_there_are_none() -> None:
    assert [each.about for each in alerts(ClusterView(), Found(), now=0.0)] == ["stale"]


def test_tokens_that_do_not_add_up_are_an_alarm() -> None:
    well = at(0.0, node_view("n1"), a=tokens(hot=2, missed=1), b=tokens(redis=4))
    assert alerts(well, Found(), now=0.0) == []
    (cluster,) = alerts(replace(well, tokens=tokens(hot=2, missed=1)), Found(), now=0.0)
    assert (cluster.level, cluster.about) == (Level.ALARM, "books")
    assert "not the sum over its tenants" in cluster.text
    (tenant,) = alerts(at(0.0, node_view("n1"), a=TokenCounts(asked=2, hot=1)), Found(), now=0.0)
    assert (tenant.level, tenant.about) == (Level.ALARM, "books")
    assert "found and missed of a " in tenant.text


def test_a_tenant_is_told_that_its_own_sums_are_right() -> None:
    view = view_of_tenant(at(0.0, node_view("n1"), a=tokens(hot=2), b=tokens(redis=4)), A)
    assert alerts(view, Found(), now=0.0, tenant=A) == []


def test_what_is_broken_comes_before_what_is_worth_knowing() -> None:
    view = at(
        0.0,
        node_view("n1", alive=False),
        node_view("n2", stats=NodeStats(traffic=NodeTraffic(breaker_open=1))),
        node_view("n3", stats=draining(4)),
        node_view("n4", stats=draining(4, stuck=2)),
    )
    found = Found(conserved=False, leader_known=False, corrupt_ages_s=[30.0, 2.0])
    said = alerts(view, found, now=0.0)
    assert [(each.level, each.about, each.node) for each in said] == [
        (Level.ALARM, "leader", None),
        (Level.ALARM, "lost", "n1"),
        (Level.ALARM, "breaker", "n2"),
        (Level.ALARM, "books", None),
        (Level.ALARM, "corrupt", None),
        (Level.WARNING, "drain", "n4"),
        (Level.NOTE, "drain", "n3"),
    ]
    assert next(each for each in said if each.about == "corrupt").age_s == 2.0


def test_a_lost_node_is_told_once_while_it_is_still_listed() -> None:
    views = at(0.0, node_view("n1")), at(1.0, node_view("n1", alive=False))
    history = told(History(), *views)
    said = alerts(views[1], Found(gone=history.gone(1.0)), now=1.0)
    assert [(each.about, each.age_s) for each in said] == [("workers", None), ("lost", 0.0)]


def test_a_stale_view_is_an_alarm_with_its_age() -> None:
    view = replace(at(0.0), trouble=Trouble.NO_ANSWER, reason="Redis could not be read (refused)")
    (said,) = alerts(view, Found(leader_known=False), now=12.0)
    assert (said.about, said.age_s) == ("stale", 12.0)
    assert "refused" in said.text


def refusing(n: int, m: int, now: float) -> ClusterView:
    stats = node_stats(a=TenantStats(refused_blocks=n), b=TenantStats(refused_blocks=m))
    return at(now, node_view("n1", stats=stats))


def test_refusals_of_the_last_minute_are_named_most_first_and_end() -> None:
    history = told(History(), refusing(5, 5, 0.0), refusing(6, 9, 5.0), refusing(6, 9, 10.0))
    view = refusing(6, 9, 10.0)
    (said,) = alerts(view, Found(points=history.points), now=10.0)
    assert said == Alert(Level.WARNING, "refused", "5 blocks were refused room in the last minute: b, a.", None, 5.0)
    assert alerts(view, Found(points=history.points), now=66.0) == []


def test_a_tenant_is_told_of_its_own_refusals_alone() -> None:
    history = told(History(), refusing(0, 0, 0.0), refusing(1, 9, 5.0))
    view = view_of_tenant(refusing(1, 9, 5.0), A)
    (said,) = alerts(view, Found(points=history.points), now=5.0, tenant=A)
    assert said.text == "1 block was refused room in the last minute: a."


def test_a_restart_that_lowers_the_refusals_is_none() -> None:
    history = told(History(), refusing(50, 0, 0.0), refusing(2, 0, 5.0))
    assert history.points[0].refused_blocks == {}


@pytest.mark.parametrize("path", ["/v1/history", "/v1/alerts"])
def test_the_routes_need_a_caller(parts: Parts, path: str) -> None:
    with parts.http(admin_token="s3cret") as stranger:
        assert stranger.get(path).status_code == 401


def test_a_lapsed_node_is_an_alert_of_the_api(parts: Parts) -> None:
    with parts.http() as api:
        assert [each["about"] for each in api.get("/v1/alerts").json()["alerts"]] == ["stale"]
        epoch = parts.membership.join(node_view("n1").info, lease_ttl_s=0.05)
        eventually(lambda: len(parts.keeper.refresh().nodes) == 1 and not parts.keeper.view.alive)
        none_alive, said = api.get("/v1/alerts").json()["alerts"]
    assert (none_alive["level"], none_alive["about"]) == ("alarm", "workers")
    assert (said["level"], said["about"], said["node"]) == ("alarm", "lost", "n1")
    assert str(epoch) in said["text"]


class FakeExplainer:
    """Tells of one corrupt block, found at noon and at the beginning of time."""

    def __init__(self) -> None:
        self.asked: list[TenantId | None] = []

    def recent(self, view: ClusterView, **asked: object) -> tuple[list[Event], Reached, list[Silent]]:
        self.asked.append(cast("TenantId | None", asked["tenant"]))
        happening = Happening("corrupt", BlockHash(b""), "a", "redis")
        return [Event(0.0, "n1", happening), Event(43_200.0, "n1", happening)], Reached(), []


def test_nodes_are_asked_for_bad_blocks_every_few_seconds_however_many_look() -> None:
    fake, bad = FakeExplainer(), BadBlocks()
    explainer = cast(Explainer, fake)
    for now in (0.0, 1.0, ASK_EVERY_S - 1.0):
        assert bad.ages_s(explainer, at(0.0), None, now=now, wall=43_210.0 + now) == [10.0 + now]
    assert bad.ages_s(explainer, at(0.0), A, now=4.0, wall=43_190.0) == [0.0]  # by a clock that is behind
    assert fake.asked == [None, A]
    bad.ages_s(explainer, at(0.0), None, now=ASK_EVERY_S, wall=43_200.0)
    assert fake.asked == [None, A, None]
    assert bad.ages_s(explainer, at(0.0), None, now=ASK_EVERY_S, wall=43_200.0 + KEPT_S + 1.0) == []


def test_the_history_is_told_with_its_step(parts: Parts) -> None:
    parts.keeper.refresh()
    with parts.http() as api:
        assert api.get("/v1/history").json() == {"step_s": STEP_S, "points": []}
