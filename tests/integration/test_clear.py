"""Clearing by the API empties pools and Redis alike, in another tenant's and a later save's despite."""

from __future__ import annotations

from collections import Counter

import pytest

from coordinator.leader.clear import STANDS_S, ClearTask
from tests.support.content import SCOPE, TENANT, hashes_of, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.clock import ManualClock
from tiered.cluster.clears import ClearRequest, Clears, What
from tiered.cluster.directory import Directory
from tiered.hashing.scope import scope_id, tenant_label
from tiered.types import Source, TenantId

OTHER = TenantId("other")


def stored(cluster: SmallCluster, seed: int, n_blocks: int) -> int:
    return sum(
        where.in_redis for where in Directory(cluster.client, cluster.keys).lookup(hashes_of(prompt(seed, n_blocks)))
    )


@pytest.mark.parametrize("what", ["tenant", "prefix", "scope"])
def test_what_is_cleared_is_gone_from_every_pool_and_from_redis(cluster: SmallCluster, what: What) -> None:
    names = {
        "tenant": TENANT,
        "prefix": hashes_of(prompt(1, 8))[0].hex(),
        "scope": scope_id(SCOPE, label=tenant_label(TENANT)).hex(),
    }
    cluster.start("w1", settings=["pool.demote=always"])
    cluster.start("w2")  # which writes nothing down, so that nothing is on its way when Redis is cleared again
    cluster.wait_acquainted()
    clears, clock = Clears(cluster.client, cluster.keys), ManualClock()
    with cluster.attach("w1") as first, cluster.attach("w2") as second:
        save(first, prompt(1, 8))
        save(first, prompt(2, 4), tenant=OTHER)
        until(lambda: stored(cluster, 1, 8) == 8, "all is in Redis too")
        cluster.wait_announced("w1", 12)
        take(second, prompt(1, 8))
        request = ClearRequest(what, names[what])
        assert clears.ask(request) == 1
        assert clears.clear_redis(request) == 8
        until(
            lambda: cluster.blocks("w1")["ready"] == 4 and cluster.blocks("w2")["ready"] == 0, "the pools are clear"
        )
        assert take(first, prompt(2, 4), tenant=OTHER) == Counter({Source.HOT: 4})
        assert save(first, prompt(1, 8)).n_stored == 8
        task = ClearTask(clears, clock)
        task.round()
        assert list(clears.standing()) == [1]
        clock.advance(STANDS_S)
        until(lambda: stored(cluster, 1, 8) == 8, "what is saved later goes down too")
        task.round()
        assert clears.standing() == {}
        assert stored(cluster, 1, 8) == 0
        assert take(first, prompt(1, 8)) == Counter({Source.HOT: 8})
