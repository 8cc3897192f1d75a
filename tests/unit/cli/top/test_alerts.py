"""What needs a person's eye, and what does not."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.cli.top.builders import counts, node, sample, tenant
from tiered.cli.bodies import Pressure
from tiered.cli.top.alerts import Alert, Level
from tiered.cli.top.picture import Picture, first_picture, seen
from tiered.cli.top.sample import Sample
from tiered.types import DrainProgress, DrainState, NodeTraffic, TokenCounts

WELL = sample(1.0, tenants=[tenant("red", counts(hot=1))], nodes=[node("a")])


def said(of: Sample | Picture) -> list[str]:
    picture = of if isinstance(of, Picture) else first_picture(of, now=of.at)
    return [alert.text for alert in picture.alerts]


def test_a_cluster_that_is_well_says_nothing() -> None:
    assert said(WELL) == []


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (sample(1.0, nodes=[node("a"), node("b", alive=False, epoch=7)]), "b is lost: the lease of its epoch 7"),
        (sample(1.0, nodes=[node("a", traffic=NodeTraffic(breaker_open=1))]), "its breaker is open"),
        (sample(1.0), "No worker has joined"),
        (sample(1.0, nodes=[node("a", alive=False)]), "No worker is alive"),
        (sample(1.0, nodes=[node("a")], stats={"redis_conserved": False}), "books differ"),
        (sample(1.0, nodes=[node("a")], stats={"stale": True, "age_s": 9.0}), "cannot read Redis"),
        (
            sample(1.0, tenants=[tenant("red", TokenCounts(asked=2, hot=1))], nodes=[node("a")]),
            "of red do not add up",
        ),
        (sample(1.0, nodes=[node("a")], stats={"tokens": counts(hot=1)}), "are not the sum over its tenants"),
    ],
)
def test_what_is_broken_is_an_alarm(of: Sample, words: str) -> None:
    alarms = [alert.text for alert in first_picture(of, now=of.at).alerts if alert.level is Level.ALARM]
    assert any(words in text for text in alarms), alarms


def test_a_dead_node_has_no_breaker_and_does_not_drain() -> None:
    dead = msgspec.structs.replace(
        node("a", alive=False, traffic=NodeTraffic(breaker_open=1)), drain=DrainProgress(state=DrainState.DRAINING)
    )
    assert len(said(sample(1.0, nodes=[node("b"), dead]))) == 1


def test_an_audit_that_could_not_tell_is_no_alarm() -> None:
    assert said(sample(1.0, nodes=[node("a")], stats={"redis_conserved": None})) == []


def test_refusals_of_the_last_interval_are_a_warning_and_older_ones_are_not() -> None:
    def at(time: float, **refused: int) -> Sample:
        tenants = [tenant(name, pressure=Pressure(refused_blocks=n)) for name, n in refused.items()]
        return sample(time, tenants=tenants, nodes=[node("a")])

    old = first_picture(at(1.0, a=5, b=5, c=5, d=5, e=5), now=1.0)
    assert said(old) == []
    new = seen(old, at(3.0, a=6, b=9, c=6, d=6, e=5), now=3.0)
    assert said(new) == ["7 blocks were refused room in the last 2.0 s: b, a, c and 1 more."]
    assert said(seen(new, at(5.0, a=6, b=9, c=6, d=6, e=5), now=5.0)) == []


def test_a_node_that_left_is_told_of_for_a_while_and_one_that_is_back_is_not() -> None:
    here, gone = sample(1.0, nodes=[node("a"), node("b")]), sample(2.0, nodes=[node("a")])
    left = seen(first_picture(here, now=1.0), gone, now=2.0)
    assert left.alerts == [Alert(Level.WARNING, "b left the cluster 0 s ago.")]
    later = seen(left, sample(4.0, nodes=[node("a")]), now=400.0)
    assert said(later) == []
    back = seen(left, sample(3.0, nodes=[node("a"), node("b", epoch=2)]), now=3.0)
    assert said(back) == []


def test_a_node_that_drained_first_is_only_a_note() -> None:
    drained = msgspec.structs.replace(node("b"), drain=DrainProgress(state=DrainState.DRAINED))
    left = seen(
        first_picture(sample(1.0, nodes=[node("a"), drained]), now=1.0), sample(2.0, nodes=[node("a")]), now=2.0
    )
    assert [(alert.level, alert.text) for alert in left.alerts] == [(Level.NOTE, "b drained, and left 0 s ago.")]


def test_blocks_that_redis_refuses_make_a_drain_a_warning() -> None:
    def draining(stuck: int) -> list[Alert]:
        drain = DrainProgress(state=DrainState.DRAINING, left_blocks=9, stuck_blocks=stuck)
        return first_picture(sample(1.0, nodes=[msgspec.structs.replace(node("a"), drain=drain)]), now=1.0).alerts

    assert draining(0) == [Alert(Level.NOTE, "a drains: 9 blocks left.")]
    assert draining(4) == [Alert(Level.WARNING, "a drains: 9 blocks left, 4 refused by Redis.")]


def test_no_leader_is_an_alarm_only_where_one_was_seen() -> None:
    nobody = sample(2.0, nodes=[node("a")], stats={"leader": None})
    assert said(nobody) == []  # a tenant's token sees none
    assert said(seen(first_picture(WELL, now=1.0), nobody, now=2.0)) == [
        "No coordinator leads: nothing is swept, audited or dealt out until one does."
    ]


def test_the_gravest_comes_first() -> None:
    drain = DrainProgress(state=DrainState.DRAINING)
    nodes = [msgspec.structs.replace(node("a"), drain=drain), node("b", alive=False)]
    levels = [alert.level for alert in first_picture(sample(1.0, nodes=nodes), now=1.0).alerts]
    assert levels == [Level.ALARM, Level.NOTE]


def test_a_start_on_stale_numbers_gives_no_rates_against_them() -> None:
    empty = sample(0.0, stats={"stale": True})
    now = seen(first_picture(empty, now=0.0), sample(5.0, tenants=[tenant("red", counts(hot=10**9))]), now=5.0)
    assert now.flow.tokens == counts()
