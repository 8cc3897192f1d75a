"""Replicas of the coordinator as real processes: one leads, it is killed, it resigns, and all of them are gone."""

from __future__ import annotations

import time
from collections import Counter

from tests.support.content import LAYOUT, prompt, save, take
from tests.support.coordinator_process import CoordinatorProcess, coordinators
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.cluster.connection import command
from tiered.cluster.shares import Shares
from tiered.types import Source, TenantId

RED = TenantId("red")
B = LAYOUT.block_bytes
LEASE_S = 2.0
QUICK = (
    f"cluster.leader_lease_s={LEASE_S}",
    "cluster.share_settle_s=0.5",
    "cluster.sweep_interval_s=0.2",
    "cluster.share_interval_s=0.1",
)


def leader_of(replicas: list[CoordinatorProcess]) -> CoordinatorProcess:
    leading: list[CoordinatorProcess] = []

    def one_leads() -> bool:
        leading[:] = [replica for replica in replicas if replica.process.poll() is None and replica.leads]
        return len(leading) == 1

    until(one_leads, "one of them leads")
    return leading[0]


def lent(cluster: SmallCluster) -> dict[str, int]:
    books = Shares(cluster.client, cluster.keys).books()
    return {
        node: record.tenants[RED].limit_bytes or 0 for node, record in books.lent.items() if RED in record.tenants
    }


def test_another_leads_within_the_lease_of_one_that_was_killed_and_no_request_notices(cluster: SmallCluster) -> None:
    cluster.set_policy(RED, hot_total_limit_bytes=8 * B)
    with coordinators(2, cluster.server, cluster.namespace, cluster.directory, *QUICK) as replicas:
        cluster.start("w1", "w2", hot=str(16 * B), settings=["pool.free_target=0", "cluster.lease_ttl_s=2"])
        with cluster.attach("w1") as client, cluster.attach("w2"):
            until(lambda: sum(lent(cluster).values()) == 8 * B, "all of the total is lent")
            until(lambda: save(client, prompt(1, 4), tenant=RED).first_index == 4, "the share is in force")
            assert take(client, prompt(1, 4), tenant=RED) == Counter({Source.HOT: 4})
            killed = leader_of(replicas)
            token = killed.get("/v1/leader")["token"]
            before = lent(cluster)
            cluster.workers["w2"].kill()
            killed.kill()
            killed_at = time.monotonic()
            [other] = [replica for replica in replicas if replica is not killed]
            while not other.leads:
                assert time.monotonic() < killed_at + LEASE_S + 2.0, other.log
                assert lent(cluster) == before, "shares change though nobody leads"
                # Every request is answered as before meanwhile.
                assert take(client, prompt(1, 4), tenant=RED) == Counter({Source.HOT: 4})
            until(lambda: cluster.view("w2") is None, "the next leader retires the node that died")
            until(lambda: lent(cluster) == {"w1": 8 * B}, "its share is lent to the one that is left")
            assert other.get("/v1/leader")["token"] > token
            assert take(client, prompt(1, 4), tenant=RED) == Counter({Source.HOT: 4})
            assert other.get("/v1/tenants/red")["policy"]["hot_total_limit_bytes"] == 8 * B


def test_a_leader_that_stops_in_order_is_followed_at_once(cluster: SmallCluster) -> None:
    slow = ("cluster.leader_lease_s=9",)
    with coordinators(2, cluster.server, cluster.namespace, cluster.directory, *slow) as replicas:
        stopped = leader_of(replicas)
        [other] = [replica for replica in replicas if replica is not stopped]
        assert other.get("/v1/stats")["leader"] == stopped.get("/v1/leader")["replica"]
        assert stopped.stop() == 0
        until(lambda: other.leads, "the other leads, long before the lease would have lapsed", within_s=5.0)


def test_workers_serve_on_with_their_last_shares_while_every_coordinator_is_gone(cluster: SmallCluster) -> None:
    cluster.set_policy(RED, hot_total_limit_bytes=8 * B)
    with coordinators(1, cluster.server, cluster.namespace, cluster.directory, *QUICK) as [only]:
        cluster.start("w1", "w2", hot=str(16 * B), settings=["pool.free_target=0", "pool.demote=never"])
        with cluster.attach("w1") as client, cluster.attach("w2"):
            until(lambda: set(lent(cluster).values()) == {4 * B}, "the total is lent in halves")
            until(lambda: save(client, prompt(1, 4), tenant=RED).first_index == 4, "the share is in force")
            only.kill()
            save(client, prompt(2, 8), tenant=RED, wait_s=0.1)
            held = cluster.metrics("w1")[("tiered_hot_bytes", RED)]
            assert held == 4 * B, "no more than its share"
            found = take(client, prompt(1, 4), tenant=RED) + take(client, prompt(2, 8), tenant=RED)
            assert found[Source.HOT] == 4
            # A worker that is restarted meanwhile begins without a share, since nobody lends it one.
            cluster.workers["w2"].kill()
            cluster.restart("w2")
            with cluster.attach("w2") as again:
                save(again, prompt(3, 2), tenant=RED, wait_s=0.1)
                assert cluster.metrics("w2").get(("tiered_hot_bytes", RED), 0) == 0
                with coordinators(1, cluster.server, cluster.namespace, cluster.directory, *QUICK):
                    until(
                        lambda: save(again, prompt(3, 1), tenant=RED, wait_s=0.1).first_index == 1,
                        "it is lent a share again",
                    )


def test_a_coordinator_says_what_it_restored_and_what_it_left_aside_and_why(cluster: SmallCluster) -> None:
    cluster.set_policy(RED, hot_total_limit_bytes=8 * B)
    cluster.tenants.set_capacity(1 << 20)
    cluster.start("w1", "w2", hot=str(16 * B), settings=["cluster.lease_ttl_s=2"])
    quick = (*QUICK, "cluster.sweep_interval_s=60")
    with coordinators(1, cluster.server, cluster.namespace, cluster.directory, *quick) as [first]:
        until(lambda: sum(lent(cluster).values()) == 8 * B, "all of the total is lent")
        first.kill()
    cluster.workers["w2"].kill()
    until(lambda: not cluster.node("w2").alive, "its lease has lapsed")
    command(cluster.client, "HSET", cluster.keys.tenants(), "blue", '{"tenant": "blue", "colour": 7}')
    with coordinators(1, cluster.server, cluster.namespace, cluster.directory, *quick) as [second]:
        until(lambda: second.get("/v1/leader")["restored"] is not None, "it has taken stock")
        said = second.get("/v1/leader")
        assert said["restored"] == {"policies": 2, "capacity_bytes": 1 << 20, "shares": 1, "lives": 1}
        dropped = {(each["what"], each["name"]): each["why"] for each in said["dropped"]}
        assert "colour" in dropped["policy", "blue"]
        assert "has ended" in dropped["share", "w2"]
        assert "lapsed" in dropped["life", "w2"]
        for what, name in dropped:
            assert f'"{name}"' in second.log
            assert what in second.log
        # One policy that cannot be read costs nobody else anything.
        assert second.get("/v1/tenants/red")["policy"]["hot_total_limit_bytes"] == 8 * B
