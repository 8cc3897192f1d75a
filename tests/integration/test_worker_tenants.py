"""Tenants' bounds on a running worker: a change takes effect at once, and nobody takes what another was promised."""

from __future__ import annotations

import time
from collections import Counter

from tests.support.content import LAYOUT, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.types import Source, TenantId

RED, BLUE = TenantId("red"), TenantId("blue")
B = LAYOUT.block_bytes
IN_FORCE_S = 2.0


def hot_blocks(cluster: SmallCluster, tenant: TenantId, name: str = "w1") -> int:
    return int(cluster.metrics(name).get(("tiered_hot_bytes", tenant), 0)) // B


def wait_in_force(cluster: SmallCluster, name: str = "w1") -> None:
    mark = f'"revision": {cluster.tenants.revision()}'
    until(lambda: mark in cluster.workers[name].log, "the worker has the policies", within_s=IN_FORCE_S)


def test_a_limit_lowered_under_a_running_worker_sends_the_surplus_to_redis(cluster: SmallCluster) -> None:
    cluster.start("w1", "w2", hot=str(16 * B), settings=["pool.free_target=0"])
    with cluster.attach("w1") as client, cluster.attach("w2") as other:
        save(client, prompt(1, 12), tenant=RED)
        save(client, prompt(1, 3), tenant=BLUE)
        started = time.monotonic()
        cluster.set_policy(RED, hot_limit_bytes=4 * B)
        until(lambda: hot_blocks(cluster, RED) == 4, "the tenant is within its new limit", within_s=IN_FORCE_S)
        assert time.monotonic() - started < IN_FORCE_S
        assert hot_blocks(cluster, BLUE) == 3
        until(lambda: cluster.metrics("w1").get(("tiered_redis_puts_total", "stored"), 0) == 8, "all is written")
        # The beginning stays, because the tail of a prefix leaves first; nothing was lost on the way.
        assert take(client, prompt(1, 4), tenant=RED) == Counter({Source.HOT: 4})
        cluster.wait_announced("w1", 7)
        cluster.wait_acquainted()
        wait_in_force(cluster, "w2")
        assert take(other, prompt(1, 12), tenant=RED) == Counter({Source.PEER: 4})  # there the limit holds as well
        cluster.set_policy(RED, hot_limit_bytes=None)
        wait_in_force(cluster, "w2")
        assert take(other, prompt(1, 12), tenant=RED) == Counter({Source.HOT: 4, Source.REDIS: 8})


def test_a_tenant_that_floods_the_pool_cannot_take_what_another_was_promised(cluster: SmallCluster) -> None:
    cluster.set_policy(RED, hot_reserved_bytes=6 * B)
    cluster.start("w1", hot=str(16 * B), settings=["pool.free_target=0", "pool.demote=never"])
    with cluster.attach("w1") as client, cluster.attach("w1") as flood:
        save(client, prompt(1, 6), tenant=RED)
        for seed in range(2, 12):
            save(flood, prompt(seed, 16), tenant=BLUE, wait_s=0.05)
        assert take(client, prompt(1, 6), tenant=RED) == Counter({Source.HOT: 6})
        assert hot_blocks(cluster, BLUE) == 10  # what is idle is used all the same


def test_tenants_without_promises_share_evenly_whoever_comes_last(cluster: SmallCluster) -> None:
    cluster.start("w1", hot=str(16 * B), settings=["pool.free_target=0", "pool.demote=never"])
    with cluster.attach("w1") as client:
        for seed in range(1, 5):
            save(client, prompt(seed, 16), tenant=BLUE, wait_s=0.1)
        assert hot_blocks(cluster, BLUE) == 16  # alone, it may fill the pool
        for seed in range(5, 13):
            save(client, prompt(seed, 4), tenant=RED, wait_s=0.1)
        assert (hot_blocks(cluster, RED), hot_blocks(cluster, BLUE)) == (8, 8)
        for seed in range(20, 24):
            save(client, prompt(seed, 16), tenant=BLUE, wait_s=0.1)
        assert (hot_blocks(cluster, RED), hot_blocks(cluster, BLUE)) == (8, 8)


def test_limits_outlive_a_server_that_forgot_them(cluster: SmallCluster) -> None:
    cluster.set_policy(RED, hot_limit_bytes=4 * B)
    [worker] = cluster.start("w1", hot=str(16 * B))
    cluster.client.delete(cluster.keys.tenants(), cluster.keys.tenants_revision())
    until(lambda: "has forgotten the policies" in worker.log, "the worker sees an empty table")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 8), tenant=RED, wait_s=0.1)
        assert hot_blocks(cluster, RED) == 4
        cluster.set_policy(RED, hot_limit_bytes=6 * B)  # and what is said afterwards counts
        until(lambda: save(client, prompt(1, 8), tenant=RED, wait_s=0.1).first_index >= 4, "asked again")
        until(
            lambda: save(client, prompt(1, 8), tenant=RED, wait_s=0.1).first_index == 6, "the new limit is in force"
        )
