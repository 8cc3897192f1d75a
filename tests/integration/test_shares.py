"""Hot totals on real workers under a real leader: they hold while demand wanders, bounds change, and things fail."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.support.content import LAYOUT, prompt, save, take
from tests.support.coordinator_process import CoordinatorProcess, coordinators
from tests.support.small_cluster import SmallCluster, small_cluster
from tests.support.worker_process import until
from tiered.client.port import CacheClient
from tiered.cluster.connection import command
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.shares import Books, Shares
from tiered.types import Source, TenantId

RED = TenantId("red")
B = LAYOUT.block_bytes
IN_FORCE_S = 2.0
ALONE = ("pool.free_target=0", "pool.demote=never")
SETTLED = "cluster.share_settle_s=1"


@pytest.fixture
def coordinator(cluster: SmallCluster) -> Iterator[CoordinatorProcess]:
    """With the intervals that users have."""
    with coordinators(1, cluster.server, cluster.namespace, cluster.directory, SETTLED) as [one]:
        yield one


def books(cluster: SmallCluster) -> Books:
    return Shares(cluster.client, cluster.keys).books()


def held(cluster: SmallCluster) -> int:
    """What all nodes say they hold, at one moment. Each says so before another is lent what it gave up."""
    reports = books(cluster).reports.values()
    return sum(report.tenants[RED].held_bytes for report in reports if RED in report.tenants)


def shares(cluster: SmallCluster) -> dict[str, int]:
    lent = books(cluster).lent
    return {node: record.tenants[RED].limit_bytes or 0 for node, record in lent.items() if RED in record.tenants}


def hot_blocks(cluster: SmallCluster, name: str) -> int:
    return int(cluster.metrics(name).get(("tiered_hot_bytes", RED), 0)) // B


def patch(coordinator: CoordinatorProcess, **bounds: int | None) -> httpx.Response:
    return httpx.patch(f"{coordinator.url}/v1/tenants/red", json=bounds, timeout=5.0, trust_env=False)


def lent_wholly(cluster: SmallCluster, total: int, n_nodes: int) -> Callable[[], bool]:
    """All of it is lent, and each worker has said that it took its part."""

    def is_so() -> bool:
        now = books(cluster)
        limits = [record.tenants[RED].limit_bytes or 0 for record in now.lent.values() if RED in record.tenants]
        taken = all(node in now.reports and now.reports[node].revision == r.revision for node, r in now.lent.items())
        return len(limits) == n_nodes and sum(limits) == total and taken

    return is_so


def test_a_total_holds_over_all_nodes_while_demand_wanders_from_one_to_the_next(
    cluster: SmallCluster, coordinator: CoordinatorProcess
) -> None:
    total = 12 * B
    cluster.set_policy(RED, hot_total_limit_bytes=total)
    cluster.start("w1", "w2", "w3", hot=str(32 * B), settings=ALONE)
    with cluster.attach("w1") as one, cluster.attach("w2") as two, cluster.attach("w3") as three:
        until(lent_wholly(cluster, total, 3), "the total is lent")
        clients: dict[str, CacheClient] = {"w1": one, "w2": two, "w3": three}
        for seed, (name, client) in enumerate(clients.items(), start=1):
            ends_at = time.monotonic() + 20.0
            while hot_blocks(cluster, name) < 7:  # more than half, where an equal part is a third
                assert time.monotonic() < ends_at, shares(cluster)
                save(client, prompt(seed, 10), tenant=RED, wait_s=0.05)
                assert held(cluster) <= total
        for name in clients:  # whoever wants nothing keeps enough to begin again
            assert shares(cluster)[name] >= total // 12


def test_a_changed_total_is_in_force_within_two_seconds(
    cluster: SmallCluster, coordinator: CoordinatorProcess
) -> None:
    cluster.set_policy(RED, hot_total_limit_bytes=16 * B)
    cluster.start("w1", "w2", hot=str(32 * B), settings=ALONE)
    with cluster.attach("w1") as one, cluster.attach("w2") as two:
        until(lent_wholly(cluster, 16 * B, 2), "the total is lent")

        def fill(n_blocks: int) -> bool:
            save(one, prompt(1, n_blocks), tenant=RED, wait_s=0.05)
            save(two, prompt(2, n_blocks), tenant=RED, wait_s=0.05)
            return hot_blocks(cluster, "w1") + hot_blocks(cluster, "w2") == 2 * n_blocks

        until(lambda: fill(8), "both are full")
        assert patch(coordinator, hot_total_limit_bytes=6 * B).status_code == 200
        until(
            lambda: hot_blocks(cluster, "w1") + hot_blocks(cluster, "w2") <= 6,
            "both together are within the lowered total",
            within_s=IN_FORCE_S,
        )
        assert patch(coordinator, hot_total_limit_bytes=20 * B).status_code == 200
        until(lambda: fill(10), "the raised total can be used", within_s=IN_FORCE_S)
        said = coordinator.get("/v1/tenants/red")
        assert said["hot_lent_bytes"] <= 20 * B
        until(
            lambda: {row["limit_bytes"] for row in coordinator.get("/v1/usage")["usage"]} == {10 * B},
            "usage shows the limit in force on each node",
        )
        rows = coordinator.get("/v1/usage")["usage"]
        assert sum(row["bytes"] for row in rows) == coordinator.get("/v1/stats")["tiers"]["hot"]["bytes"]


def test_a_bound_that_is_new_evicts_nothing_that_fits(cluster: SmallCluster, coordinator: CoordinatorProcess) -> None:
    cluster.start("w1", "w2", hot=str(32 * B), settings=ALONE)
    until(lambda: books(cluster).settled, "the books are open")
    with cluster.attach("w1") as one:
        save(one, prompt(1, 10), tenant=RED)
        cluster.set_policy(RED, hot_total_limit_bytes=12 * B)
        until(lent_wholly(cluster, 12 * B, 2), "the total is lent")
        assert take(one, prompt(1, 10), tenant=RED) == Counter({Source.HOT: 10})
        assert held(cluster) <= 12 * B


def test_a_node_that_was_stopped_for_longer_than_its_lease_comes_back_within_the_total(
    cluster: SmallCluster, coordinator: CoordinatorProcess
) -> None:
    total = 12 * B
    cluster.set_policy(RED, hot_total_limit_bytes=total)
    cluster.start("w1", "w2", hot=str(32 * B), settings=[*ALONE, "cluster.lease_ttl_s=2"])
    with cluster.attach("w1") as one, cluster.attach("w2") as two:
        until(lent_wholly(cluster, total, 2), "the total is lent")
        until(lambda: save(two, prompt(2, 6), tenant=RED, wait_s=0.1).first_index == 6, "the other half is used")
        cluster.workers["w2"].pause()
        until(lambda: shares(cluster).get("w1") == total, "its share is lent to the other")
        until(lambda: save(one, prompt(1, 12), tenant=RED, wait_s=0.1).first_index == 12, "which uses it")
        cluster.workers["w2"].go_on()
        until(lambda: (view := cluster.view("w2")) is not None and view.alive, "it is a member again")
        until(
            lambda: hot_blocks(cluster, "w1") + hot_blocks(cluster, "w2") <= 12 and held(cluster) <= total,
            "both are within the total again",
        )
        assert hot_blocks(cluster, "w1") > 0
        assert hot_blocks(cluster, "w2") > 0, "nothing is flushed for it"


def test_shares_outlive_a_server_that_forgot_everything(private_redis_server: EmbeddedServer) -> None:
    total = 12 * B
    with small_cluster(private_redis_server) as cluster:
        cluster.set_policy(RED, hot_total_limit_bytes=total)
        cluster.start("w1", "w2", hot=str(32 * B), settings=ALONE)
        settings = ("cluster.share_settle_s=2", "cluster.sweep_interval_s=0.2")
        with (
            coordinators(2, cluster.server, cluster.namespace, cluster.directory, *settings) as [first, _],
            cluster.attach("w1") as one,
            cluster.attach("w2") as two,
        ):
            until(lent_wholly(cluster, total, 2), "the total is lent")
            for client, seed in ((one, 1), (two, 2)):
                until(
                    lambda client=client, seed=seed: (
                        save(client, prompt(seed, 6), tenant=RED, wait_s=0.1).first_index == 6
                    ),
                    "its half is used",
                )
            until(lambda: first.get("/v1/tenants/red")["named"], "the replicas know the policy")
            command(cluster.client, "FLUSHALL")

            def lent_again() -> bool:
                assert held(cluster) <= total
                return lent_wholly(cluster, total, 2)()

            until(lent_again, "policies and shares are back", within_s=20.0)
            assert take(one, prompt(1, 6), tenant=RED) == Counter({Source.HOT: 6})
            assert take(two, prompt(2, 6), tenant=RED) == Counter({Source.HOT: 6})


def test_reservations_beyond_the_nodes_alive_are_refused_scaled_and_restored(
    cluster: SmallCluster, coordinator: CoordinatorProcess
) -> None:
    cluster.set_policy(RED)
    cluster.start("w1", "w2", hot=str(32 * B), settings=["cluster.lease_ttl_s=2"])
    until(lambda: coordinator.get("/v1/stats")["nodes"]["alive"] == 2, "both are seen")
    refused = patch(coordinator, hot_total_reserved_bytes=65 * B)
    assert refused.status_code == 422
    assert refused.json()["error"]["field"] == "hot_total_reserved_bytes"
    assert str(64 * B) in refused.json()["error"]["message"]
    assert patch(coordinator, hot_total_reserved_bytes=48 * B).status_code == 200

    def in_force() -> int:
        return int(coordinator.get("/v1/tenants/red")["hot_reserved_in_force_bytes"])

    until(lambda: in_force() == 48 * B, "it is kept on the two")
    cluster.workers["w2"].kill()
    until(lambda: in_force() == 32 * B, "one node alone keeps what it can")
    until(lambda: "in force in part" in coordinator.log, "and the log says so")
    assert patch(coordinator, weight=2).status_code == 200, "a change that asks for no more is never refused"
    cluster.restart("w2")
    until(lambda: in_force() == 48 * B, "it is restored with the node")
    until(lambda: "in force again" in coordinator.log, "and the log says so")
