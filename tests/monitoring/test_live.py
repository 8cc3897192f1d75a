"""Boards and rules in a real Prometheus that scrapes a cluster at work: nothing empty, no error, alerts that fire.

The tests run in their order: what they do to the cluster grows from resting it to killing a worker.
"""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.browser.busy import (
    ACME,
    ADMIN,
    GLOBEX,
    LEASE_S,
    NODES,
    READER,
    TENANTS,
    UMBRELLA,
    Busy,
    busy_cluster,
    talk,
    tokens_of,
)
from tests.monitoring.prometheus import Prometheus, Sample, Targets, Tools, finite, prometheus, settings_for
from tests.support.boards import Panel, boards, filled, records, selectors
from tests.support.content import hashes_of, save, take
from tests.support.coordinator_process import coordinators
from tests.support.worker_process import until
from tests.unit.monitoring.known import level
from tiered.cluster.embedded import EmbeddedServer
from tiered.metrics.page import CATALOGUES
from tiered.metrics.series import Kind

PATIENCE_S: Final = 60.0
KILLED: Final = NODES[-1]
SEEN: Final = "30s"
"""What rates look back on, as if the time shown were some minutes."""

AFTER_FAULTS_ONLY: Final = {
    "tiered_damaged_blocks_total",
    "tiered_demotions_dropped_total",
    "tiered_directory_repaired_blocks_total",
    "tiered_directory_repairs_total",
    "tiered_fetch_out_of_patience_total",
    "tiered_fetch_probes_total",
    "tiered_journal_lost_rows_total",
    "tiered_lost_brought_blocks_total",
    "tiered_not_adopted_blocks_total",
    "tiered_adopted_blocks_total",
    "tiered_warmed_blocks_total",
    "tiered_peer_refused_total",
    "tiered_redis_breaker_opened_total",
    "tiered_redis_failed_calls_total",
    "tiered_redis_missed_blocks_total",
    "tiered_second_made_blocks_total",
    "tiered_why_dropped_events_total",
    "tiered_worker_engines_refused_total",
    "tiered_worker_rejoins_total",
}
"""Counters that panels show and that stay at zero while all is well."""


@dataclass(frozen=True, slots=True)
class Watched:
    busy: Busy
    prometheus: Prometheus
    targets: Targets


@pytest.fixture(scope="module")
def watched(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("prometheus")
    tokens = (f"http.admin_token={ADMIN}", f"http.read_token={READER}")
    with (
        EmbeddedServer.start(tmp_path_factory.mktemp("redis"), maxmemory_bytes=None) as server,
        busy_cluster(server, settings=tokens) as busy,
        coordinators(1, server, busy.cluster.namespace, directory, *tokens) as (other,),
    ):
        busy.cluster.set_policy(UMBRELLA, copies=2)
        replicas = [replica.url.removeprefix("http://") for replica in (busy.coordinator, other)]
        targets = Targets(directory)
        targets.write({"tiered-worker": workers(busy), "tiered-coordinator": replicas})
        settings = settings_for(directory, targets, token=READER, at_once=("TieredWorkerLost", "TieredTargetDown"))
        with prometheus(tools, settings) as server_of_metrics:
            health = dict.fromkeys((*workers(busy), *replicas), "up")
            until(lambda: server_of_metrics.targets() == health, "every target is scraped", within_s=PATIENCE_S)
            for name in NODES:
                busy.attach(name)
            yield Watched(busy, server_of_metrics, targets)
            assert busy.wrong == []


def workers(busy: Busy) -> list[str]:
    return [f"127.0.0.1:{busy.cluster.node(name).info.metrics_port}" for name in NODES]


def values(watched: Watched) -> dict[str, str]:
    """Grafana's variables, with all values chosen."""
    found = {"__rate_interval": SEEN, "__range": "5m"}
    for board in boards():
        for variable in board.variables:
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert asked is not None
            known = watched.prometheus.values_of(asked[2], asked[1])
            assert known, f"{variable['name']} has no value"
            found[variable["name"]] = f"({'|'.join(known)})"
    return found


def panels() -> list[Panel]:
    return [panel for board in boards() for panel in board.panels]


def only_alerts(expression: str) -> bool:
    return {selector.series for selector in selectors(filled(expression))} == {"ALERTS"}


def counters_shown() -> set[str]:
    """By name, those that some panel draws; of a histogram, its count."""
    asked = {selector.series for panel in panels() for e in panel.expressions for selector in selectors(filled(e))}
    found = set()
    for series in (series for catalogue in CATALOGUES for series in catalogue):
        if series.kind is Kind.COUNTER and series.name in asked:
            found.add(series.name)
        if series.kind is Kind.HISTOGRAM and asked & {f"{series.name}_bucket", f"{series.name}_count"}:
            found.add(f"{series.name}_count")
    return found


def test_what_panels_draw_moves_under_load(watched: Watched) -> None:
    """One tenant asks for ever new prompts beside the others, so that they have to give it room."""
    waiting = counters_shown() - AFTER_FAULTS_ONLY
    assert counters_shown() >= AFTER_FAULTS_ONLY
    seeds = itertools.count(1_000_000)
    with watched.busy.cluster.attach(NODES[1]) as crowding:

        def moved() -> bool:
            save(crowding, tokens_of(next(seeds), 24), tenant=UMBRELLA, wait_s=0.1)
            waiting.difference_update({name for name in waiting if watched.prometheus.number(name) > 0})
            return not waiting

        try:
            until(moved, "all that panels draw has moved", within_s=PATIENCE_S)
        except AssertionError:
            assert waiting == set()


def test_every_query_of_every_panel_and_variable_finds_something(watched: Watched) -> None:
    chosen = values(watched)
    assert chosen["node"] == f"({'|'.join(sorted(NODES))})"
    assert set(TENANTS) <= set(chosen["tenant"].strip("()").split("|"))
    lacking: dict[str, list[Sample]] = {}
    for panel in panels():
        for target in panel.raw["targets"]:
            expression = filled(target["expr"], chosen)
            if only_alerts(expression):
                watched.prometheus.ask(expression)  # of what it finds, below
                continue
            try:
                until(lambda e=expression: finite(watched.prometheus.ask(e)), expression, within_s=20.0)  # type: ignore[misc]
            except AssertionError as error:
                lacking[f"{panel.name}: {error}"] = watched.prometheus.ask(expression)
                continue
            samples = watched.prometheus.ask(expression)
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert all(label in sample.labels for sample in samples), f"{panel.name}: {label} of {expression}"
    assert lacking == {}


def test_what_one_tenant_or_node_is_asked_for_is_of_that_one_alone(watched: Watched) -> None:
    chosen = values(watched)
    for name, one in (("tenant", str(ACME)), ("node", NODES[0])):
        for panel in panels():
            for expression in panel.expressions:
                if f"${name}" in expression:
                    samples = watched.prometheus.ask(filled(expression, chosen | {name: one}))
                    assert {sample.labels.get(name, one) for sample in samples} <= {one}, expression


def test_recorded_ratios_have_the_labels_of_their_names_and_none_is_empty(watched: Watched) -> None:
    assert watched.prometheus.rule_errors() == []
    for record in records():
        samples = watched.prometheus.ask(record)
        assert finite(samples), record
        assert {frozenset(sample.labels) - {"__name__"} for sample in samples} == {level(record)}
    (ratio,) = watched.prometheus.ask("cluster:tiered_hit_ratio:rate5m")
    assert 0 < ratio.value <= 1


def test_tokens_found_and_missed_are_those_asked_for(watched: Watched) -> None:
    watched.busy.rest()
    ask = watched.prometheus.ask

    def by_tenant(expression: str) -> dict[str, float]:
        return {sample.labels["tenant"]: sample.value for sample in ask(expression) if sample.value}

    def agreed() -> bool:
        found = by_tenant("sum by (tenant) (tiered_tokens_total)")
        return (
            set(found) == set(TENANTS)
            and found == by_tenant("sum by (tenant) (tiered_asked_tokens_total)")
            and found == by_tenant("sum by (tenant) (max by (tenant, outcome) (tiered_tenant_tokens_total))")
            and found == by_tenant("max by (tenant) (tiered_tenant_asked_tokens_total)")
        )

    until(agreed, "workers and coordinators have said the same", within_s=PATIENCE_S)


def test_no_alert_fires_while_all_is_well(watched: Watched) -> None:
    found = watched.prometheus.alerts
    until(lambda: found("pending", "firing") == set(), "nothing is wrong any more", within_s=PATIENCE_S)
    assert watched.prometheus.ask('max by (alertname) (max_over_time(ALERTS{alertstate="firing"}[10m]))') == []


def test_a_damaged_block_and_a_stranger_are_seen(watched: Watched) -> None:
    cluster = watched.busy.cluster
    with cluster.attach(NODES[0]) as client:
        client.note_prefill(n_tokens=2_048, took_s=0.4)

        def damaged() -> bool:
            for subject in range(17):
                for block_hash in hashes_of(talk(1, subject, 4), tenant=GLOBEX):
                    key = cluster.keys.block(block_hash)
                    if cluster.client.exists(key):
                        cluster.client.setrange(key, 2_000, b"\0spoilt\0")
                take(client, talk(1, subject, 4), tenant=GLOBEX)
            return watched.prometheus.number('tiered_damaged_blocks_total{source="redis"}') > 0

        until(damaged, "a damaged block was met", within_s=PATIENCE_S)
    info = cluster.node(NODES[0]).info
    with socket.create_connection((info.peer_host, info.peer_port), timeout=5.0):
        pass
    fires = ("TieredCorruptionSeen", NODES[0])
    until(lambda: fires in watched.prometheus.alerts("firing"), "corruption is an alert", within_s=PATIENCE_S)
    until(lambda: watched.prometheus.number("tiered_peer_refused_total") > 0, "the stranger is counted")


def test_a_killed_worker_is_an_alert_within_its_lease_and_none_when_it_is_back(watched: Watched) -> None:
    busy, found = watched.busy, watched.prometheus.alerts
    lost = ("TieredWorkerLost", KILLED)
    assert lost not in found("pending", "firing")
    busy.cluster.workers[KILLED].kill()
    # Its lease, the coordinator's next look, a scrape, an evaluation; and a machine that has other things to do.
    until(lambda: lost in found("pending", "firing"), "it is noticed", within_s=LEASE_S + 10.0)
    until(lambda: lost in found("firing"), "it is an alert", within_s=LEASE_S + 10.0)
    number = watched.prometheus.number
    until(lambda: number("sum(tiered_nodes_lost_total)") == 1, "it is struck off", within_s=PATIENCE_S)
    until(lambda: not watched.prometheus.ask(f'tiered_node_up{{node="{KILLED}"}}'), "it is no node any more")
    assert lost in found("firing")  # and goes on while it is away
    for panel in panels():
        for expression in filter(only_alerts, panel.expressions):
            assert finite(watched.prometheus.ask(filled(expression))), panel.name
    assert {name for name, _ in found("firing")} >= {"TieredWorkerLost", "TieredTargetDown"}
    busy.cluster.restart(KILLED)
    busy.attach(KILLED)
    until(lambda: lost not in found("pending", "firing"), "it is back", within_s=PATIENCE_S)
    watched.targets.write({"tiered-worker": workers(busy)})  # it has a port of its own again
    adopted = (
        f'tiered_adopted_blocks_total * on (instance, job) group_left (node) tiered_worker_info{{node="{KILLED}"}}'
    )
    until(lambda: number(adopted) > 0, "its journal's blocks are counted", within_s=PATIENCE_S)
