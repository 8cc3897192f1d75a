"""A tenant that asks for two copies has each of its blocks in two places, and a new second after one was lost."""

from __future__ import annotations

from collections import Counter

import msgspec

from coordinator.leader.runner import Sweeper
from coordinator.leader.seconds import Seconds
from tests.support.content import LAYOUT, SCOPE, TENANT, hashes_of, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.clock import SystemClock
from tiered.cluster.directory import Directory
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.lost import LostCopies
from tiered.cluster.replicas import Replicas
from tiered.codec.frame import HEADER_BYTES
from tiered.types import SecondUse, Source, TenantId, TenantStats

N_BLOCKS = 24
STORED_BYTES = LAYOUT.block_bytes + HEADER_BYTES
SOON_S = 8.0
"""Within seconds, on a machine that is busy."""


def in_redis(cluster: SmallCluster, seed: int, n_blocks: int = N_BLOCKS, *, tenant: TenantId = TENANT) -> int:
    found = Directory(cluster.client, cluster.keys).lookup(hashes_of(prompt(seed, n_blocks), tenant=tenant))
    return sum(where.in_redis for where in found)


def use_of(cluster: SmallCluster, name: str) -> SecondUse:
    """What the node published of second copies."""
    return cluster.node(name).stats.tenants.get(TENANT, TenantStats()).seconds


def stored(cluster: SmallCluster, name: str) -> int:
    """Blocks that a node has written to Redis."""
    return int(sum(n for key, n in cluster.metrics(name).items() if key[0] == "tiered_redis_stored_blocks_total"))


def looked(cluster: SmallCluster, name: str) -> int:
    return int(cluster.metrics(name)[("tiered_second_looked_blocks_total",)])


def sweeper(cluster: SmallCluster) -> Sweeper:
    replicas = Replicas(cluster.client, cluster.keys, SystemClock(), timeout_s=2.0)
    directory = Directory(cluster.client, cluster.keys)
    return Sweeper(membership=cluster.membership, directory=directory, asked=Seconds(cluster.tenants, replicas).asked)


def lost(cluster: SmallCluster) -> LostCopies:
    return LostCopies(cluster.client, cluster.keys)


def swept(cluster: SmallCluster, leader: Sweeper, name: str) -> None:
    """Until a node that was killed is retired and swept."""

    def is_gone() -> bool:
        leader.round()
        return cluster.view(name) is None

    until(is_gone, f"{name} is swept", within_s=15)


SHORT_LEASE = ["cluster.lease_ttl_s=2", "cluster.heartbeat_s=0.3"]


def test_what_is_saved_is_in_redis_at_once_and_stays_hot(cluster: SmallCluster) -> None:
    cluster.set_policy(TENANT, copies=2)
    cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, N_BLOCKS))
        until(lambda: in_redis(cluster, 1) == N_BLOCKS, "every block has a second copy", within_s=SOON_S)
        assert take(client, prompt(1, N_BLOCKS)) == Counter({Source.HOT: N_BLOCKS})
        usage = RedisLedger(cluster.client, cluster.keys).usage()[TENANT]
        assert (usage.used_bytes, usage.blocks) == (N_BLOCKS * STORED_BYTES, N_BLOCKS)

        def seconds() -> tuple[int, int, int]:
            use = use_of(cluster, "w1")
            return use.second_blocks, use.second_bytes, use.single_blocks

        until(lambda: seconds() == (N_BLOCKS, usage.used_bytes, 0), "the node says what of it are second copies")


def test_who_asks_for_one_copy_has_nothing_written_down(cluster: SmallCluster) -> None:
    other = TenantId("other")
    cluster.set_policy(TENANT, copies=2)
    cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 4), tenant=other)
        save(client, prompt(1, 4))
        until(lambda: in_redis(cluster, 1, 4) == 4, "the other's are there", within_s=SOON_S)
        until(lambda: use_of(cluster, "w1").second_blocks == 4, "a look was taken")
        assert in_redis(cluster, 1, 4, tenant=other) == 0
        assert stored(cluster, "w1") == 4


def test_a_tenant_that_asks_later_gets_seconds_of_what_it_has(cluster: SmallCluster) -> None:
    cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, N_BLOCKS))
        assert in_redis(cluster, 1) == 0
        cluster.set_policy(TENANT, copies=2)
        until(lambda: in_redis(cluster, 1) == N_BLOCKS, "seconds were made", within_s=SOON_S)
        assert cluster.metrics("w1")[("tiered_second_made_blocks_total",)] == N_BLOCKS


def test_a_redis_that_lost_its_values_gets_them_again(own_cluster: SmallCluster) -> None:
    cluster = own_cluster
    cluster.set_policy(TENANT, copies=2)
    cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, N_BLOCKS))
        until(lambda: in_redis(cluster, 1) == N_BLOCKS, "every block has a second copy", within_s=SOON_S)
        cluster.client.flushall()
        until(lambda: in_redis(cluster, 1) == N_BLOCKS, "and again", within_s=SOON_S + 5)
        cluster.client.delete(*(cluster.keys.block(h) for h in hashes_of(prompt(1, 3))))
        cluster.client.delete(*(cluster.keys.meta(h) for h in hashes_of(prompt(1, 3))))
        until(lambda: in_redis(cluster, 1) == N_BLOCKS, "what was taken from under it too", within_s=SOON_S + 5)


def test_what_redis_has_no_room_for_is_counted_and_not_asked_every_second(cluster: SmallCluster) -> None:
    cluster.set_policy(TENANT, copies=2, redis_limit_bytes=0)
    cluster.start("w1")

    def refused() -> int:
        return int(cluster.metrics("w1").get(("tiered_redis_puts_total", "refused_quota"), 0))

    with cluster.attach("w1") as client:
        save(client, prompt(1, 4))
        until(lambda: use_of(cluster, "w1").single_blocks == 4, "they are found to be single", within_s=SOON_S)
        assert cluster.metrics("w1")[("tiered_single_blocks", TENANT)] == 4
        until(lambda: refused() >= 8, "they were asked for once more", within_s=SOON_S)
        before, looked_before = refused(), looked(cluster, "w1")
        until(lambda: looked(cluster, "w1") >= looked_before + 5 * 4, "five more looks", within_s=15)
        assert refused() - before <= 2 * 4
        assert take(client, prompt(1, 4)) == Counter({Source.HOT: 4})
        save(client, prompt(2, 4))
        cluster.set_policy(TENANT, copies=2)
        until(
            lambda: in_redis(cluster, 1, 4) == in_redis(cluster, 2, 4) == 4, "with room they are there", within_s=40
        )


def test_a_block_that_two_nodes_hold_is_not_written_until_one_of_them_dies(cluster: SmallCluster) -> None:
    one, two = cluster.start("w1", "w2", settings=SHORT_LEASE)
    cluster.wait_acquainted()
    with cluster.attach("w1") as first, cluster.attach("w2") as second:
        save(first, prompt(1, 8))
        cluster.wait_announced("w1", 8)
        assert take(second, prompt(1, 8)) == Counter({Source.PEER: 8})
        cluster.wait_announced("w2", 8)
        cluster.set_policy(TENANT, copies=2)
        for name in ("w1", "w2"):
            until(lambda name=name: looked(cluster, name) >= 16, f"{name} has looked twice")
        assert in_redis(cluster, 1, 8) == 0
    one.kill()
    until(lambda: in_redis(cluster, 1, 8) == 8, "the one that is left has made seconds", within_s=15)
    assert two.process.is_alive()


def test_after_its_owner_was_killed_a_block_is_served_from_redis_and_another_node_becomes_its_second_place(
    cluster: SmallCluster,
) -> None:
    cluster.set_policy(TENANT, copies=2)
    one, _ = cluster.start("w1", "w2", settings=SHORT_LEASE)
    leader = sweeper(cluster)
    with cluster.attach("w1") as first, cluster.attach("w2") as second:
        for seed in (1, 2):
            save(first, prompt(seed, N_BLOCKS))
        save(first, prompt(3, 4), tenant=TenantId("other"))
        until(lambda: in_redis(cluster, 1) + in_redis(cluster, 2) == 2 * N_BLOCKS, "seconds", within_s=SOON_S)
        cluster.wait_announced("w1", 2 * N_BLOCKS + 4)
        leader.round()
        one.kill()
        swept(cluster, leader, "w1")
        cluster.wait_announced("w2", 2 * N_BLOCKS, within_s=SOON_S)
        until(lambda: lost(cluster).counts() == (0, 0), "the list is empty")
        assert cluster.metrics("w2")[("tiered_lost_brought_blocks_total",)] == 2 * N_BLOCKS
        assert take(second, prompt(1, N_BLOCKS)) == Counter({Source.HOT: N_BLOCKS})
        assert take(second, prompt(2, N_BLOCKS)) == Counter({Source.HOT: N_BLOCKS})


def test_a_node_without_room_evicts_nothing_for_what_was_lost_and_serves_it_from_redis(cluster: SmallCluster) -> None:
    cluster.set_policy(TENANT, copies=2)
    other = TenantId("other")
    one, _ = cluster.start(
        "w1", "w2", settings=[*SHORT_LEASE, "pool.free_target=0"], hot=str(N_BLOCKS * LAYOUT.block_bytes)
    )
    leader = sweeper(cluster)
    with cluster.attach("w1") as first, cluster.attach("w2") as second:
        save(first, prompt(1, 8))
        save(second, prompt(2, N_BLOCKS), tenant=other)
        until(lambda: in_redis(cluster, 1, 8) == 8, "seconds", within_s=SOON_S)
        cluster.wait_announced("w1", 8)
        leader.round()
        one.kill()
        swept(cluster, leader, "w1")
        until(lambda: cluster.metrics("w2")[("tiered_lost_waiting_blocks",)] == 8, "w2 has seen the list")
        assert cluster.blocks("w2")["ready"] == N_BLOCKS
        assert take(second, prompt(1, 8)) == Counter({Source.REDIS: 8})


def test_what_a_worker_took_and_died_with_is_taken_by_the_next(cluster: SmallCluster) -> None:
    cluster.set_policy(TENANT, copies=2)
    one, _ = cluster.start("w1", "w2", settings=SHORT_LEASE)
    leader = sweeper(cluster)
    with cluster.attach("w1") as first, cluster.attach("w2"):
        save(first, prompt(1, 8))
        until(lambda: in_redis(cluster, 1, 8) == 8, "seconds", within_s=SOON_S)
        cluster.wait_announced("w1", 8)
        leader.round()
        cluster.workers["w2"].pause()
        one.kill()
        swept(cluster, leader, "w1")
        assert len(lost(cluster).take(3, lease_s=2.0)) == 3  # by one that is never heard of again
        cluster.workers["w2"].go_on()
        cluster.wait_announced("w2", 8, within_s=SOON_S + 2)
        until(lambda: lost(cluster).counts() == (0, 0), "the list is empty")


def test_blocks_of_a_model_that_is_not_served_here_are_left_to_others(cluster: SmallCluster) -> None:
    cluster.set_policy(TENANT, copies=2)
    one, _ = cluster.start("w1", "w2", settings=SHORT_LEASE)
    leader = sweeper(cluster)
    stranger = msgspec.structs.replace(SCOPE, model="another")
    with cluster.attach("w1") as first, cluster.attach("w2", scope=stranger):
        save(first, prompt(1, 8))
        until(lambda: in_redis(cluster, 1, 8) == 8, "seconds", within_s=SOON_S)
        cluster.wait_announced("w1", 8)
        leader.round()
        one.kill()
        swept(cluster, leader, "w1")
        until(lambda: lost(cluster).take(8, lease_s=0.0) == [], "w2 has taken them")
        assert lost(cluster).counts() == (8, 0)
        assert cluster.blocks("w2")["ready"] == 0
        with cluster.attach("w2") as second:
            cluster.wait_announced("w2", 8, within_s=SOON_S)
            assert take(second, prompt(1, 8)) == Counter({Source.HOT: 8})
