"""Redis dies, is silent, comes back empty or forgets: calls end in time, and the worker finds its way back alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.content import LAYOUT, TENANT, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import paused, scrape, until
from tiered.client.remote import RemoteClient, RemoteOptions
from tiered.cluster.embedded import EmbeddedServer
from tiered.errors import TierError
from tiered.types import Epoch, NodeId, Source

T = LAYOUT.block_tokens
QUICK = ("cluster.heartbeat_s=0.1", "cluster.lease_ttl_s=0.6")
OPTIONS = RemoteOptions(call_timeout_s=1.0, grace_s=1.0)
POOL = str(16 * LAYOUT.block_bytes)


@contextmanager
def timed(bound_s: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    took = time.monotonic() - started
    assert took < bound_s, f"took {took:.2f} s, {bound_s:g} s are allowed"


def exercise(client: RemoteClient, *, rounds: int) -> None:
    """Requests that want something of Redis each; none may wait for it, and what is hot stays a hit."""
    for seed in range(100, 100 + rounds):
        with timed(OPTIONS.call_timeout_s):
            match = client.match(prompt(seed, 4), tenant=TENANT)
            assert (match.n_peer, match.n_redis) == (0, 0)
        with timed(0.5):
            client.load(match, deadline_s=0.2)
            client.release(match, used_tokens=0)
        with timed(1.0):
            assert save(client, prompt(seed, 4), wait_s=0.1).n_stored == 4
            assert take(client, prompt(seed, 4)) == Counter({Source.HOT: 4})
    assert client.attached


def wait_rejoined(cluster: SmallCluster, name: str, before: Epoch) -> None:
    def joined() -> bool:
        try:
            view = cluster.view(name)
        except TierError:
            return False
        return view is not None and view.alive and view.epoch > before

    until(joined, f"{name} has joined again under a newer epoch", within_s=15)


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_engines_go_on_while_redis_is_gone_and_the_cluster_is_whole_again_afterwards(
    own_cluster: SmallCluster, how: str
) -> None:
    cluster = own_cluster
    cluster.start("w1", "w2", hot=POOL, settings=QUICK)
    port = cluster.node("w1").info.metrics_port
    with cluster.attach("w1", options=OPTIONS) as client, cluster.attach("w2", options=OPTIONS) as other:
        before = cluster.node("w1").epoch
        if how == "killed":
            cluster.server.kill()
            exercise(client, rounds=4)
            until(lambda: scrape(port)[("tiered_worker_redis_connected",)] == 0, "the worker knows")
            with EmbeddedServer.start(cluster.server.socket_path.parent, maxmemory_bytes=None):
                _whole_again(cluster, client, other, before)
        else:
            with paused(cluster.server.pid):
                exercise(client, rounds=4)
                until(lambda: scrape(port)[("tiered_worker_redis_connected",)] == 0, "the worker knows")
            _whole_again(cluster, client, other, before)


def _whole_again(cluster: SmallCluster, client: RemoteClient, other: RemoteClient, before: Epoch) -> None:
    wait_rejoined(cluster, "w1", before)
    wait_rejoined(cluster, "w2", before)
    save(client, prompt(1, 8))

    def found() -> bool:
        return take(other, prompt(1, 8)).total() == 8

    cluster.wait_acquainted()
    until(found, "another worker's engine finds what was saved", within_s=15)
    until(lambda: cluster.metrics("w1")[("tiered_worker_redis_connected",)] == 1, "the worker knows that it answers")


def test_what_a_worker_holds_is_announced_again_to_a_server_that_forgot_everything(cluster: SmallCluster) -> None:
    """FLUSHALL, as far as this cluster's keys go."""
    cluster.start("w1", "w2", hot=POOL, settings=[*QUICK, "pool.demote=never"])
    with cluster.attach("w1") as client, cluster.attach("w2") as other:
        save(client, prompt(1, 8))
        cluster.wait_announced("w1", 8)
        before = cluster.node("w1").epoch
        keys = cluster.client.keys(f"*{cluster.namespace}*")
        assert cluster.client.delete(*keys) == len(keys) > 8
        wait_rejoined(cluster, "w1", before)
        wait_rejoined(cluster, "w2", before)
        cluster.wait_announced("w1", 8)
        cluster.wait_acquainted()
        assert take(other, prompt(1, 8)) == Counter({Source.PEER: 8})
        assert take(client, prompt(1, 8)) == Counter({Source.HOT: 8})


def test_a_worker_whose_lease_lapsed_is_fenced_and_announces_all_under_a_new_epoch(cluster: SmallCluster) -> None:
    first, _ = cluster.start("w1", "w2", hot=POOL, settings=[*QUICK, "pool.demote=never"])
    with cluster.attach("w1") as client, cluster.attach("w2") as other:
        save(client, prompt(1, 8))
        take(client, prompt(1, 8))
        cluster.wait_announced("w1", 8)
        until(lambda: cluster.node("w1").stats.tenants, "its counts are published")
        before = cluster.node("w1").epoch
        with paused(first.pid):
            until(lambda: not cluster.node("w1").alive, "the lease lapses")
            until(lambda: cluster.metrics("w2")[("tiered_worker_peers",)] == 0, "the other worker knows")
            with timed(1.0):
                assert other.match(prompt(1, 8), tenant=TENANT).n_peer == 0
        wait_rejoined(cluster, "w1", before)
        cluster.wait_announced("w1", 8)
        cluster.wait_acquainted()
        assert take(other, prompt(1, 8)) == Counter({Source.PEER: 8})
    # Each token counts once, over the life that ended and the one that runs.
    until(lambda: _asked(cluster) >= 3 * 8 * T, "all counts are published")
    assert _asked(cluster) == 3 * 8 * T


def _asked(cluster: SmallCluster) -> int:
    ended = cluster.membership.retired_tokens().get(TENANT)
    running = [view.stats.tenants.get(TENANT) for view in cluster.membership.nodes()]
    return (ended.asked if ended else 0) + sum(stats.tokens.asked for stats in running if stats)


def test_entries_of_the_shared_state_that_cannot_be_read_do_not_stop_a_worker(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1", settings=QUICK)
    cluster.client.hset(cluster.keys.tenants(), "acme", '{"tenant": "acme", "invented_later": 1}')
    cluster.client.incr(cluster.keys.tenants_revision())
    cluster.client.hset(cluster.keys.nodes(), "w9", b"\x92\x80\x01")
    until(lambda: "invented_later" in worker.log, "it says what it cannot read")
    epoch = cluster.metrics("w1")[("tiered_worker_epoch",)]
    until(
        lambda: cluster.client.pttl(cluster.keys.node_lease(NodeId("w1"))) > 550, "its lease is renewed all the same"
    )
    assert cluster.metrics("w1")[("tiered_worker_epoch",)] == epoch
    with cluster.attach("w1") as client:
        save(client, prompt(1, 2))
        assert take(client, prompt(1, 2)) == Counter({Source.HOT: 2})
