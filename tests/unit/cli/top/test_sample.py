"""Whom ``tiered top`` asks: the first coordinator that answers, over real HTTP, and the next when it is gone."""

from __future__ import annotations

import socket
from datetime import UTC, datetime

import pytest

from tests.support.fake_api import FakeApi, fake_api
from tests.unit.cli.top.builders import counts, node, sample, tenant
from tiered.cli.bodies import Alert, Node, Tenant, UsageRow
from tiered.cli.explained import Event
from tiered.cli.top.sample import TOO_OLD, Cluster, Sample, Subject
from tiered.errors import ConfigError

TENANTS = [tenant("red", counts(hot=3, missed=1)), tenant("blue")]
NODES = [node("a"), node("b")]
EVENT = Event(
    at=datetime(2026, 1, 2, tzinfo=UTC),
    where="a",
    what="evicted",
    block="00" * 32,
    tenant="red",
    tier="hot",
    blocks=1,
    sentence="evicted: so that blue could have the room",
    detail={},
)


def api(**fields: object) -> FakeApi:
    stats = sample(0.0, tenants=TENANTS, nodes=NODES, stats={"age_s": 0.5}).stats
    return FakeApi(stats=stats, tenants=TENANTS, nodes=NODES, **fields)  # type: ignore[arg-type]


def free_url() -> str:
    """Where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}"


def test_a_sample_is_of_the_time_when_the_coordinator_read_it() -> None:
    with fake_api(api()) as one:
        cluster = Cluster(lambda: [one.url], clock=lambda: 100.0)
        taken = cluster.sample()
        cluster.close()
    assert (taken.at, taken.url) == (99.5, one.url)
    assert [each.policy.tenant for each in taken.tenants] == ["red", "blue"]
    assert taken.tenants[0].tokens == counts(hot=3, missed=1)


def sampled(served: FakeApi) -> Sample:
    with fake_api(served) as one:
        cluster = Cluster(lambda: [one.url])
        try:
            return cluster.sample()
        finally:
            cluster.close()


def test_alerts_are_the_coordinator_s() -> None:
    told = [Alert("alarm", "lost", "Worker b is lost.", "b", 1.5), Alert("note", "left", "c left.")]
    taken = sampled(api(alerts=told))
    assert (taken.alerts, taken.alerts_failure) == (told, "")


def test_a_coordinator_too_old_for_alerts_tells_its_numbers_all_the_same() -> None:
    taken = sampled(api(alerts=None))
    assert (taken.alerts, taken.alerts_failure) == ((), TOO_OLD)
    assert [each.node for each in taken.nodes] == ["a", "b"]


def test_alerts_that_cannot_be_read_do_not_take_the_numbers_away() -> None:
    taken = sampled(api(alerts=RuntimeError("the nodes could not be asked")))
    assert (taken.alerts, taken.alerts_failure) == ((), "internal: the nodes could not be asked")
    assert [each.node for each in taken.nodes] == ["a", "b"]


def test_who_wants_the_sums_alone_asks_for_nothing_else() -> None:
    with fake_api(api()) as one:
        cluster = Cluster(lambda: [one.url])
        cluster.totals()
        cluster.close()
    assert one.asked == ["/v1/stats"]


def test_the_next_coordinator_is_asked_when_one_is_gone_and_stays_the_one() -> None:
    with fake_api(api()) as second:
        with fake_api(api()) as first:
            cluster = Cluster(lambda: [first.url, second.url])
            assert cluster.sample().url == first.url
        assert cluster.sample().url == second.url
        assert cluster.sample().url == second.url
        cluster.close()


def test_one_that_comes_back_at_another_address_is_found() -> None:
    urls = [free_url()]
    cluster = Cluster(lambda: urls)
    with pytest.raises(ConfigError, match="nothing answers at"):
        cluster.sample()
    with fake_api(api()) as one:
        urls[:] = [one.url]
        assert cluster.sample().url == one.url
        cluster.close()


def test_of_several_that_are_gone_the_first_is_named_and_each_is_asked_once() -> None:
    urls = [free_url(), free_url()]
    cluster = Cluster(lambda: urls)
    with pytest.raises(ConfigError, match=f"nothing answers at {urls[0]} "):
        cluster.sample()


def test_a_missing_token_is_said_and_nobody_else_is_asked_forever() -> None:
    with fake_api(api(token="s3cret")) as one:
        cluster = Cluster(lambda: [one.url, one.url + "/"])
        with pytest.raises(ConfigError, match="token: no token was shown; see TIERED_TOKEN or --token-file"):
            cluster.sample()
        assert one.asked == ["/v1/stats"]
        allowed = Cluster(lambda: [one.url], token="s3cret")
        assert allowed.sample().url == one.url
        allowed.close()


def test_a_detail_is_of_its_subject_alone() -> None:
    usage = [
        UsageRow("red", "hot", "a", 8192, 2),
        UsageRow("red", "redis", None, 10, 1),
        UsageRow("blue", "hot", "a", 4096, 1),
    ]
    with fake_api(api(usage=usage, events=[EVENT])) as one:
        cluster = Cluster(lambda: [one.url])
        cluster.sample()
        red = cluster.detail(Subject(Tenant, "red"))
        here = cluster.detail(Subject(Node, "a"))
        cluster.close()
    assert list(red.usage) == usage[:2]
    assert [event.sentence for event in red.events] == [EVENT.sentence]
    assert [row.tenant for row in here.usage] == ["red", "blue"]


def test_a_name_that_looks_like_more_of_a_query_stays_a_name() -> None:
    with fake_api(api(usage=[UsageRow("red", "hot", "a", 1, 1)])) as one:
        cluster = Cluster(lambda: [one.url])
        cluster.sample()
        assert list(cluster.detail(Subject(Node, "a&tenant=blue")).usage) == []
        cluster.close()


def test_without_a_sample_there_is_nobody_to_ask_for_details() -> None:
    with pytest.raises(ConfigError, match="none answers by now"):
        Cluster(list).detail(Subject(Tenant, "red"))
