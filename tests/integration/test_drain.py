"""A drain moves what no other place has to Redis, tells how far it is, and ends with the node gone, nothing lost."""

from __future__ import annotations

from collections import Counter

from tests.support.content import LAYOUT, TENANT, hashes_of, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.cluster.directory import Directory
from tiered.cluster.drains import Drains
from tiered.types import DrainState, NodeId, Source

N_BLOCKS = 24


def drains(cluster: SmallCluster) -> Drains:
    return Drains(cluster.client, cluster.keys)


def in_redis(cluster: SmallCluster, seed: int, n_blocks: int = N_BLOCKS) -> int:
    found = Directory(cluster.client, cluster.keys).lookup(hashes_of(prompt(seed, n_blocks)))
    return sum(where.in_redis for where in found)


def drain(cluster: SmallCluster, name: str) -> None:
    drains(cluster).ask(NodeId(name), cluster.node(name).epoch)


def wait_gone(cluster: SmallCluster, name: str) -> None:
    until(lambda: cluster.view(name) is None, f"{name} has left", within_s=20)


def test_what_only_a_drained_node_has_is_served_from_redis_afterwards(cluster: SmallCluster) -> None:
    cluster.start("w1", "w2")
    with cluster.attach("w1") as client:
        save(client, prompt(1, N_BLOCKS))
        assert in_redis(cluster, 1) == 0
        drain(cluster, "w1")
        wait_gone(cluster, "w1")
    request = drains(cluster).asked(NodeId("w1"))
    assert request is not None
    assert request.outcome is not None
    assert (request.outcome.state, request.outcome.left_blocks) == (DrainState.DRAINED, 0)
    assert request.outcome.moved_blocks == N_BLOCKS
    assert in_redis(cluster, 1) == N_BLOCKS
    with cluster.attach("w2") as other:
        until(lambda: cluster.metrics("w2")[("tiered_worker_peers",)] == 0, "w2 knows that w1 has left")
        assert take(other, prompt(1, N_BLOCKS)) == Counter({Source.REDIS: N_BLOCKS})


def test_a_draining_node_admits_nothing_and_serves_what_it_has(cluster: SmallCluster) -> None:
    cluster.start("w1", settings=["redis.lookup_timeout_s=5"])
    with cluster.attach("w1") as client:
        save(client, prompt(1, 8))
        cluster.set_policy(TENANT, redis_limit_bytes=0)  # so that the drain has nowhere to go and takes its time
        drain(cluster, "w1")
        until(lambda: cluster.node("w1").stats.drain.state is DrainState.DRAINING, "it drains")
        saved = client.save(prompt(2, 8), tenant=TENANT, fill=lambda pool, block_ids, first_index: None)
        assert (saved.n_stored, saved.reason, saved.answer) == (0, "draining", "refused: draining")
        assert take(client, prompt(1, 8)) == Counter({Source.HOT: 8})
        wait_gone(cluster, "w1")
        assert take(client, prompt(1, 8)) == Counter({Source.HOT: 8})
    outcome = drains(cluster).asked(NodeId("w1"))
    assert outcome is not None
    assert outcome.outcome is not None
    assert outcome.outcome.left_blocks == outcome.outcome.stuck_blocks == 8


def test_what_a_node_that_stays_has_too_is_not_moved_and_two_that_leave_do_not_trust_each_other(
    cluster: SmallCluster,
) -> None:
    cluster.start("w1", "w2", "w3")
    cluster.wait_acquainted()
    with cluster.attach("w1") as first, cluster.attach("w2") as second, cluster.attach("w3"):
        save(first, prompt(1, 8))
        cluster.wait_announced("w1", 8)
        assert take(second, prompt(1, 8)) == Counter({Source.PEER: 8})
        cluster.wait_announced("w2", 8)
        drain(cluster, "w1")
        wait_gone(cluster, "w1")
        assert in_redis(cluster, 1, 8) == 0
        drain(cluster, "w2")
        wait_gone(cluster, "w2")
        assert in_redis(cluster, 1, 8) == 8


def test_a_drain_that_is_called_off_lets_the_node_admit_again(cluster: SmallCluster) -> None:
    cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 8))
        drain(cluster, "w1")
        wait_gone(cluster, "w1")
        assert drains(cluster).cancel(NodeId("w1"))
        until(lambda: cluster.view("w1") is not None, "it has joined again")
        save(client, prompt(2, 8))
        cluster.wait_announced("w1", 16)


def test_the_next_life_of_a_drained_node_knows_nothing_of_it(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1"):
        drain(cluster, "w1")
        wait_gone(cluster, "w1")
    assert worker.stop() == 0
    cluster.restart("w1")
    until(lambda: drains(cluster).asked(NodeId("w1")) is None, "the old request is taken away")
    assert cluster.node("w1").stats.drain.state is DrainState.NONE


def test_an_orderly_stop_may_drain_first(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1", settings=["cluster.drain_on_stop_s=5"])
    with cluster.attach("w1") as client:
        save(client, prompt(1, N_BLOCKS))
    assert LAYOUT.block_bytes > 0
    assert worker.stop() == 0
    assert in_redis(cluster, 1) == N_BLOCKS
