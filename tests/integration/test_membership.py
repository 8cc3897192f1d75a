"""Lives of real workers: restarted, paused, renamed, moved, doubled; who counts, and what is left afterwards."""

from __future__ import annotations

import socket
import time
from collections import Counter

import pytest

from coordinator.leader.runner import Sweeper
from tests.support.content import LAYOUT, TENANT, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import paused, until
from tiered.cluster.audit import Auditor
from tiered.cluster.directory import Directory
from tiered.types import Epoch, NodeId, Source

QUICK = ("cluster.heartbeat_s=0.1", "cluster.lease_ttl_s=0.6")
SLOW = ("cluster.heartbeat_s=2", "cluster.lease_ttl_s=60")
"""A heartbeat long enough to restart within it."""

HOT = ("pool.demote=never", "journal.mode=off")
POOL = str(16 * LAYOUT.block_bytes)
W1 = NodeId("w1")


def directory(cluster: SmallCluster) -> Directory:
    return Directory(cluster.client, cluster.keys)


def sweeper(cluster: SmallCluster) -> Sweeper:
    return Sweeper(membership=cluster.membership, directory=directory(cluster))


def keys_of_lives(cluster: SmallCluster) -> set[bytes]:
    """Sets, digests and stamped records."""
    parts = [key.rpartition(b"}:")[2] for key in cluster.client.scan_iter(match=f"{{{cluster.namespace}:*")]
    return {part for part in parts if part[:2] in (b"n:", b"d:", b"m:")}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def test_a_restart_within_one_heartbeat_is_noticed_by_all(cluster: SmallCluster) -> None:
    cluster.start("w1", hot=POOL, settings=[*SLOW, *HOT])
    cluster.start("w2", hot=POOL, settings=[*QUICK, *HOT])
    with cluster.attach("w1") as client:
        save(client, prompt(1, 8))
        cluster.wait_announced("w1", 8)
    sweep = sweeper(cluster)
    sweep.round()
    old = cluster.node("w1").epoch
    until(lambda: cluster.metrics("w2")[("tiered_worker_peers",)] == 1, "they know each other")
    cluster.workers["w1"].kill()
    cluster.restart("w1")
    new = cluster.node("w1").epoch
    assert new > old
    assert cluster.node("w1").alive
    with cluster.attach("w2") as other:
        until(
            lambda: other.match(prompt(1, 8), tenant=TENANT).n_peer == 0,
            "what the earlier life held does not count, though its lease would still run",
        )
    assert directory(cluster).count(W1, old) == 8
    sweep.round()
    assert directory(cluster).count(W1, old) == 0
    assert keys_of_lives(cluster) == set()
    assert cluster.node("w1").epoch == new


def test_an_idle_worker_is_never_reaped(cluster: SmallCluster) -> None:
    cluster.start("w1", settings=QUICK)
    epoch, sweep = cluster.node("w1").epoch, sweeper(cluster)
    ends = time.monotonic() + 4 * 0.6

    def rounds_are_over() -> bool:
        sweep.round()
        view = cluster.node("w1")
        assert (view.epoch, view.alive) == (epoch, True)
        return time.monotonic() > ends

    until(rounds_are_over, "several leases have passed")


def test_a_worker_that_was_paused_says_and_lends_nothing_under_its_old_epoch(cluster: SmallCluster) -> None:
    first, _ = cluster.start("w1", "w2", hot=POOL, settings=[*QUICK, *HOT])
    sweep = sweeper(cluster)
    with cluster.attach("w1") as client, cluster.attach("w2") as other:
        save(client, prompt(1, 8))
        cluster.wait_announced("w1", 8)
        sweep.round()
        old = cluster.node("w1").epoch
        with paused(first.pid):
            until(lambda: not cluster.node("w1").alive, "the lease lapses")
            sweep.round()
            assert cluster.view("w1") is None
        until(lambda: cluster.announced("w1") == 8, "it joined again and announced all")
        assert cluster.node("w1").epoch > old
        assert directory(cluster).count(W1, old) == 0
        until(lambda: other.match(prompt(1, 8), tenant=TENANT).n_peer == 8, "the other worker knows the new life")
        assert take(other, prompt(1, 8)) == Counter({Source.PEER: 8})


def test_a_node_may_come_back_at_another_address_and_the_address_under_another_name(cluster: SmallCluster) -> None:
    port = free_port()
    [first] = cluster.start("w1", hot=POOL, settings=[*QUICK, *HOT, f"node.peer_port={port}"])
    cluster.start("w3", hot=POOL, settings=[*QUICK, *HOT])
    with cluster.attach("w1") as client:
        save(client, prompt(1, 4))
        cluster.wait_announced("w1", 4)
    first.kill()
    [second] = cluster.start("w2", hot=POOL, settings=[*QUICK, *HOT, f"node.peer_port={port}"])
    first = cluster.spawn("w1", *QUICK, *HOT, hot=POOL).wait_ready()
    assert cluster.node("w2").info.peer_port == port
    assert cluster.node("w1").info.peer_port != port
    with cluster.attach("w1") as one, cluster.attach("w2") as two, cluster.attach("w3") as three:
        save(one, prompt(2, 4))
        save(two, prompt(3, 4))
        cluster.wait_announced("w1", 4)
        cluster.wait_announced("w2", 4)
        cluster.wait_acquainted()
        assert take(three, prompt(2, 4)) == Counter({Source.PEER: 4})
        assert take(three, prompt(3, 4)) == Counter({Source.PEER: 4})
        assert three.match(prompt(1, 4), tenant=TENANT).n_peer == 0, "that was the node's earlier life"
    assert second.process.is_alive()


def test_of_two_workers_of_one_name_the_later_has_it_and_the_earlier_takes_it_back(cluster: SmallCluster) -> None:
    """On two machines, so that they do not share a journal, which would refuse the second."""
    [first] = cluster.start("w1", hot=POOL, settings=[*QUICK, *HOT])
    metrics_port = cluster.node("w1").info.metrics_port
    second = cluster.spawn("w2", *QUICK, *HOT, hot=POOL, extra=["--node", "w1"])
    until(lambda: "worker w1 ready" in second.stdout_path.read_text(), "the second is ready", within_s=20)
    until(lambda: "another worker took this node's name" in first.log, "the first says so")
    taken = cluster.node("w1")
    assert taken.info.pid == second.pid
    assert taken.info.metrics_port != metrics_port
    with cluster.attach("w1") as client, cluster.attach("w2") as other:
        save(client, prompt(1, 2))
        assert take(client, prompt(1, 2)) == Counter({Source.HOT: 2}), "it serves its own engines all the same"
        save(other, prompt(2, 3))
        cluster.wait_announced("w1", 3)
        assert cluster.node("w1").epoch == taken.epoch, "nobody fights"
        assert first.log.count("another worker took this node's name") == 1
        assert "another worker took" not in second.log
        second.kill()
        until(lambda: cluster.node("w1").info.pid == first.pid, "the first has its name back", within_s=20)
        cluster.wait_announced("w1", 2)


@pytest.mark.parametrize("days", [-400, 400])
def test_clocks_of_machines_may_differ_by_days(cluster: SmallCluster, days: int) -> None:
    often = "cluster.heartbeat_s=0.1"
    cluster.start("w1", hot=POOL, settings=[often, *HOT])
    cluster.spawn("w2", often, *HOT, hot=POOL, skew_s=days * 86_400.0).wait_ready()
    cluster.wait_acquainted()
    epochs = {name: cluster.node(name).epoch for name in ("w1", "w2")}
    with cluster.attach("w1") as one, cluster.attach("w2") as two:
        for seed, (own, other, name) in enumerate([(one, two, "w1"), (two, one, "w2")]):
            save(own, prompt(seed, 4))
            cluster.wait_announced(name, 4 if seed == 0 else 8)
            assert take(other, prompt(seed, 4)) == Counter({Source.PEER: 4})
    sweeper(cluster).round()
    assert {name: cluster.node(name).epoch for name in ("w1", "w2")} == epochs
    assert all(view.alive for view in cluster.membership.nodes())


def test_nothing_of_the_directory_is_left_when_all_workers_have_left(cluster: SmallCluster) -> None:
    cluster.start("w1", "w2", hot=POOL, settings=[*QUICK, *HOT])
    sweep = sweeper(cluster)
    for name in ("w1", "w2"):
        with cluster.attach(name) as client:
            save(client, prompt(1, 8))
            cluster.wait_announced(name, 8)
    sweep.round()
    assert cluster.workers["w1"].stop() == 0
    cluster.workers["w2"].kill()
    until(lambda: not any(view.alive for view in cluster.membership.nodes()), "all leases are over")
    sweep.round()
    assert keys_of_lives(cluster) == set()
    assert cluster.membership.nodes() == []


def test_what_a_life_that_nobody_saw_left_behind_goes_with_the_audit(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1", hot=POOL, settings=[*QUICK, *HOT])
    with cluster.attach("w1") as client:
        save(client, prompt(1, 8))
        cluster.wait_announced("w1", 8)
    old: Epoch = cluster.node("w1").epoch
    worker.kill()
    cluster.restart("w1")
    auditor = Auditor(cluster.client, cluster.keys)
    assert [auditor.walk().stamps for _ in range(3)] == [0, 8, 0]
    assert directory(cluster).count(W1, old) == 0
    assert keys_of_lives(cluster) == set()
