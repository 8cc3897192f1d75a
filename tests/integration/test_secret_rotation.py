"""A new cluster secret, node by node, while blocks go from each to each: nobody is refused on the way."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

from tests.support.content import LAYOUT, TENANT, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.client.port import CacheClient
from tiered.types import Source

NODES = ("w1", "w2", "w3")
N = 2
POOL = str(96 * LAYOUT.block_bytes)
SETTINGS = ("pool.demote=never", "cluster.heartbeat_s=0.1", "journal.mode=off")

ROUNDS = (
    ("cluster.secret=old", "cluster.accepted_secret=new"),
    ("cluster.secret=new", "cluster.accepted_secret=old"),
    ("cluster.secret=new", "cluster.accepted_secret="),
)
"""As docs/operations.md has them."""


def all_fetch_from_all(cluster: SmallCluster, seeds: Iterator[int]) -> None:
    """New blocks of every node reach every other one, over new connections or kept ones."""
    mine = {name: next(seeds) for name in NODES}
    with ExitStack() as stack:
        clients = {name: stack.enter_context(cluster.attach(name)) for name in NODES}
        for name, client in clients.items():
            assert save(client, prompt(mine[name], N)).n_stored == N
        for name, client in clients.items():
            for other in NODES:
                if other != name:
                    wait_known(client, mine[other])
                    assert take(client, prompt(mine[other], N)) == Counter({Source.PEER: N}), (name, other)


def wait_known(client: CacheClient, seed: int) -> None:
    """Until a peer is known to have the prompt's blocks."""

    def known() -> bool:
        match = client.match(prompt(seed, N), tenant=TENANT)
        client.release(match, used_tokens=0)
        return match.n_peer == N

    until(known, f"prompt {seed} is announced", within_s=30)


def refusals(cluster: SmallCluster) -> dict[str, float]:
    names = ("tiered_peer_refused_total", "tiered_peer_missed_blocks_total")
    return {
        f"{name} {key}": n
        for name in NODES
        for key, n in cluster.metrics(name).items()
        if key[0] in names and key[1] == "secret" and n
    }


def test_a_secret_is_changed_node_by_node_and_no_fetch_is_refused(cluster: SmallCluster) -> None:
    seeds = itertools.count(1)
    cluster.start(*NODES, hot=POOL, settings=(*SETTINGS, "cluster.secret=old"))
    all_fetch_from_all(cluster, seeds)
    for settings in ROUNDS:
        for name in NODES:
            assert refusals(cluster) == {}
            assert cluster.workers[name].stop() == 0
            more = [part for setting in settings for part in ("--set", setting)]
            cluster.workers[name] = cluster.workers[name].again(more=more)
            cluster.wait_acquainted()
            all_fetch_from_all(cluster, seeds)
    assert refusals(cluster) == {}
    # And the old one is worth nothing any more.
    cluster.spawn("w4", *SETTINGS, "cluster.secret=old", hot=POOL).wait_ready()
    until(lambda: cluster.metrics("w4")[("tiered_worker_peers",)] == 3, "it looked around")
    with cluster.attach("w1") as one, cluster.attach("w4") as four:
        assert save(one, prompt(1_000, N)).n_stored == N
        wait_known(four, 1_000)
        assert take(four, prompt(1_000, N)) == Counter()
    assert cluster.metrics("w1")[("tiered_peer_refused_total", "secret")] == 1
