"""Redis goes back to an earlier snapshot under a running cluster: books, epochs and directory find together again."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.support.content import LAYOUT, prompt, save, take
from tests.support.coordinator_process import CoordinatorProcess, coordinators
from tests.support.small_cluster import SmallCluster, small_cluster
from tests.support.worker_process import until
from tiered.cluster.audit import Auditor
from tiered.cluster.connection import command
from tiered.cluster.embedded import EmbeddedServer
from tiered.errors import TierError
from tiered.tenancy.policy import TenantPolicy
from tiered.types import NO_EPOCH, Source, TenantId

RED, BLUE = TenantId("red"), TenantId("blue")
B = LAYOUT.block_bytes
N = 4
RESTORED_S = 30.0
QUICK = ("cluster.leader_lease_s=1", "cluster.share_settle_s=0.5", "cluster.sweep_interval_s=0.2")
WORKER = ("cluster.heartbeat_s=0.1", "pool.free_target=0", "pool.demote=always")


def stored(cluster: SmallCluster, name: str) -> int:
    return int(cluster.metrics(name).get(("tiered_redis_puts_total", "stored"), 0))


def limit(cluster: SmallCluster, name: str, tenant: TenantId) -> float | None:
    return cluster.metrics(name).get(("tiered_hot_limit_bytes", tenant))


def named(coordinator: CoordinatorProcess) -> set[str]:
    return {each["policy"]["tenant"] for each in coordinator.get("/v1/tenants")["tenants"]}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("lease_s", [1, 100])
def test_after_an_old_snapshot_nothing_wrong_is_served_and_all_adds_up_again(
    private_redis_server: EmbeddedServer, lease_s: int
) -> None:
    """The snapshot is older than a lease, or so young that a node which lived then and lives now goes on."""
    first, is_older = private_redis_server, lease_s == 1
    with small_cluster(first) as cluster:
        cluster.set_policy(RED, hot_limit_bytes=16 * B)
        with coordinators(1, first, cluster.namespace, cluster.directory, *QUICK) as [coordinator]:
            cluster.start("w1", "w2", hot=str(64 * B), settings=(*WORKER, f"cluster.lease_ttl_s={lease_s}"))
            with cluster.attach("w1") as one, cluster.attach("w2") as two:
                assert save(one, prompt(1, N), tenant=RED).n_stored == N
                until(lambda: stored(cluster, "w1") == N, "the prompt is in Redis")
                until(lambda: limit(cluster, "w1", RED) == 16 * B, "the bound is in force")
                command(cluster.client, "SAVE")
                saved_at = time.monotonic()
                # And then the world goes on.
                cluster.set_policy(RED, hot_limit_bytes=32 * B)
                cluster.set_policy(BLUE, hot_limit_bytes=8 * B)
                assert save(one, prompt(2, N), tenant=RED).n_stored == N
                assert save(two, prompt(3, N), tenant=RED).n_stored == N
                until(lambda: stored(cluster, "w1") == 2 * N and stored(cluster, "w2") == N, "all are in Redis")
                until(lambda: limit(cluster, "w1", RED) == 32 * B, "the later bound is in force")
                until(lambda: BLUE in named(coordinator), "the coordinator has read blue's policy")
                for _ in range(2):  # the snapshot knows nothing of the epochs of these lives
                    cluster.workers["w2"].kill()
                    cluster.restart("w2")
                before = {name: cluster.node(name).epoch for name in ("w1", "w2")}
                token = coordinator.get("/v1/leader")["token"]

                first.kill()
                until(lambda: not is_older or time.monotonic() > saved_at + lease_s, "the snapshot is old enough")
                with EmbeddedServer.start(first.socket_path.parent, maxmemory_bytes=None):

                    def rejoined() -> bool:
                        try:
                            views = {view.info.node: view for view in cluster.membership.nodes()}
                        except TierError:
                            return False
                        epochs = {name: view.epoch for name, view in views.items() if view.alive}
                        goes_on = not is_older and epochs.get("w1") == before["w1"]
                        is_anew = {name: epochs.get(name, NO_EPOCH) > before[name] for name in before}
                        return is_anew["w2"] and (is_anew["w1"] or goes_on)

                    until(rejoined, "both are members, under epochs greater than those before", within_s=RESTORED_S)
                    until(
                        lambda: coordinator.leads and coordinator.get("/v1/leader")["token"] > token,
                        "a leader has a greater token than all before",
                        within_s=RESTORED_S,
                    )
                    # The policies are the snapshot's, and what it does not have is no longer promised.
                    until(
                        lambda: (limit(cluster, "w1", RED), limit(cluster, "w1", BLUE)) == (16 * B, None),
                        "the snapshot's bounds are in force",
                        within_s=RESTORED_S,
                    )
                    assert cluster.tenants.get(RED) == TenantPolicy(tenant=RED, hot_limit_bytes=16 * B)
                    assert cluster.tenants.get(BLUE) is None
                    # What the snapshot has is found and right, what it has not is a miss or hot.
                    cluster.wait_announced("w1", 2 * N, within_s=RESTORED_S)
                    with cluster.attach("w2") as again:
                        assert take(again, prompt(3, N), tenant=RED)[Source.REDIS] == 0
                        found = take(again, prompt(1, N), tenant=RED)
                        assert found.total() == N
                        assert set(found) <= {Source.PEER, Source.REDIS, Source.HOT}
                        assert take(again, prompt(2, N), tenant=RED) == Counter({Source.PEER: N})
                    until(
                        lambda: Auditor(cluster.client, cluster.keys).walk().conserved is True,
                        "the books add up",
                        within_s=RESTORED_S,
                    )
                    alive = {view.epoch for view in cluster.membership.nodes()}
                    until(
                        lambda: (
                            {
                                int(key.rpartition(b":")[2])
                                for key in cluster.client.scan_iter(match=f"{{{cluster.namespace}:0}}:n:*")
                            }
                            <= alive
                        ),
                        "what the snapshot's lives left in the directory is gone",
                        within_s=RESTORED_S,
                    )
