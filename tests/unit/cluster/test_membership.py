from __future__ import annotations

from contextlib import closing

import pytest
import redis

from tests.support.content import SCOPE
from tests.support.redis_server import eventually, settings_for
from tests.support.worker_process import until
from tiered.cluster.connection import command, connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.cluster.membership import Membership, UnreadNode
from tiered.errors import LeaseExpired, StaleEpoch
from tiered.hashing.scope import encode_scope
from tiered.types import NodeId, NodeInfo, NodeRates, NodeStats, SourceRate, TenantId, TenantStats, TokenCounts

A, B = NodeId("node-a"), NodeId("node-b")
RED, BLUE = TenantId("red"), TenantId("blue")


@pytest.fixture
def membership(redis_client: redis.Redis, redis_keys: Keys) -> Membership:
    return Membership(redis_client, redis_keys)


def info(node: NodeId) -> NodeInfo:
    return NodeInfo(
        node=node,
        peer_host="10.0.0.1",
        peer_port=7001,
        metrics_port=7002,
        socket_path="/run/w.sock",
        capacity_bytes=(1 << 50) - 1,
    )


def stats(*, red: int = 0, blue: int = 0) -> NodeStats:
    tenants = {
        "red": TenantStats(tokens=TokenCounts(asked=red, hot=red)),
        "blue": TenantStats(tokens=TokenCounts(asked=blue, missed=blue)),
    }
    return NodeStats(
        pool_blocks=10,
        free_blocks=3,
        block_bytes=1 << 20,
        engines=1,
        layout="x",
        tenants=tenants,
        scopes=(encode_scope(SCOPE),),
        rates=NodeRates(peers=SourceRate(0.001, 1e9), prefill_tokens_per_s=1_234.5),
    )


def test_a_member_is_seen_as_it_joined_and_renewed(membership: Membership) -> None:
    epoch = membership.join(info(A), lease_ttl_s=30)
    membership.renew(A, epoch, stats(red=5), lease_ttl_s=60)
    membership.join(info(B), lease_ttl_s=30)
    first, second = membership.nodes()
    assert (first.info, first.epoch, first.stats) == (info(A), epoch, stats(red=5))
    assert 30 < first.lease_left_s <= 60
    assert (second.info, second.stats, second.alive) == (info(B), NodeStats(), True)


def test_every_join_has_a_greater_epoch(membership: Membership) -> None:
    epochs = [membership.join(info(node), lease_ttl_s=30) for node in (A, B, A, A)]
    assert epochs == sorted(set(epochs))


def test_epochs_grow_even_when_the_server_forgot_the_last_one(
    membership: Membership, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    # A server that restarts empty: that takes longer than its clock's millisecond, in which epochs are counted.
    def server_ms() -> int:
        seconds, microseconds = command(redis_client, "TIME")
        return int(seconds) * 1_000 + int(microseconds) // 1_000

    before = membership.join(info(A), lease_ttl_s=30)
    command(redis_client, "DEL", redis_keys.epochs(), redis_keys.nodes(), redis_keys.node_lease(A))
    until(lambda: server_ms() > before, "the server's clock moves on")
    assert membership.join(info(A), lease_ttl_s=30) > before


def test_a_lapsed_lease_is_never_revived(membership: Membership) -> None:
    epoch = membership.join(info(A), lease_ttl_s=0.02)
    eventually(lambda: not membership.nodes()[0].alive)
    with pytest.raises(LeaseExpired):
        membership.renew(A, epoch, stats(red=5), lease_ttl_s=30)
    assert membership.nodes()[0].lease_left_s == 0.0
    assert membership.nodes()[0].stats == NodeStats()


def test_a_member_that_an_empty_server_does_not_know_must_rejoin(
    membership: Membership, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    epoch = membership.join(info(A), lease_ttl_s=30)
    command(redis_client, "DEL", redis_keys.nodes())
    with pytest.raises(LeaseExpired):
        membership.renew(A, epoch, stats(), lease_ttl_s=30)


def test_an_older_life_cannot_renew_leave_or_be_retired(membership: Membership) -> None:
    old = membership.join(info(A), lease_ttl_s=30)
    new = membership.join(info(A), lease_ttl_s=30)
    with pytest.raises(StaleEpoch) as refused:
        membership.renew(A, old, stats(red=99), lease_ttl_s=30)
    assert (refused.value.seen, refused.value.current) == (old, new)
    membership.leave(A, old)
    assert not membership.retire(A, old)
    assert [view.epoch for view in membership.nodes()] == [new]
    assert membership.retired_tokens() == {}


def test_leaving_removes_the_node_and_keeps_its_tokens(membership: Membership) -> None:
    epoch = membership.join(info(A), lease_ttl_s=30)
    membership.renew(A, epoch, stats(red=5, blue=7), lease_ttl_s=30)
    membership.leave(A, epoch)
    membership.leave(A, epoch)
    assert membership.nodes() == []
    assert membership.retired_tokens() == {
        RED: TokenCounts(asked=5, hot=5),
        BLUE: TokenCounts(asked=7, missed=7),
    }
    with pytest.raises(LeaseExpired):
        membership.renew(A, epoch, stats(), lease_ttl_s=30)


def test_what_a_later_release_counts_besides_hides_nothing(
    membership: Membership, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    epoch = membership.join(info(A), lease_ttl_s=30)
    membership.renew(A, epoch, stats(red=5), lease_ttl_s=30)
    membership.leave(A, epoch)
    command(redis_client, "HINCRBY", redis_keys.retired_tokens(), f"{RED}|guessed", 3)
    command(redis_client, "HINCRBY", redis_keys.retired_tokens(), f"{BLUE}|guessed", 3)
    assert membership.retired_tokens() == {RED: TokenCounts(asked=5, hot=5), BLUE: TokenCounts()}


def test_a_running_lease_protects_a_life_from_being_retired(membership: Membership) -> None:
    epoch = membership.join(info(A), lease_ttl_s=30)
    assert not membership.retire(A, epoch)
    assert membership.nodes()[0].alive


def test_a_lapsed_life_is_folded_exactly_once(membership: Membership) -> None:
    epoch = membership.join(info(A), lease_ttl_s=30)
    membership.renew(A, epoch, stats(red=5), lease_ttl_s=0.02)
    eventually(lambda: membership.retire(A, epoch))
    assert not membership.retire(A, epoch)
    assert membership.retired_tokens() == {RED: TokenCounts(asked=5, hot=5)}


def test_rejoining_folds_the_life_before(membership: Membership) -> None:
    for tokens in (5, 1 << 40):
        epoch = membership.join(info(A), lease_ttl_s=30)
        membership.renew(A, epoch, stats(red=tokens), lease_ttl_s=30)
    membership.join(info(A), lease_ttl_s=30)
    total = 5 + (1 << 40)
    assert membership.retired_tokens() == {RED: TokenCounts(asked=total, hot=total)}
    assert membership.nodes()[0].stats == NodeStats()


def test_a_full_server_still_renews_leases(private_redis_server: EmbeddedServer) -> None:
    client = connect(settings_for(private_redis_server), timeout_s=5.0)
    membership = Membership(client, Keys())
    epoch = membership.join(info(A), lease_ttl_s=30)
    command(client, "CONFIG", "SET", "maxmemory", 1)
    membership.renew(A, epoch, stats(red=5), lease_ttl_s=30)
    assert membership.nodes()[0].stats == stats(red=5)
    client.close()


def test_who_lives_is_told_at_the_same_length_however_many_tenants_there_are(
    private_redis_server: EmbeddedServer,
) -> None:
    with closing(connect(settings_for(private_redis_server), timeout_s=5.0)) as client:
        membership = Membership(client, Keys("t"))
        epochs = {node: membership.join(info(node), lease_ttl_s=60) for node in (A, B)}

        def sent_for_lives() -> int:
            before: int = command(client, "INFO", "stats")["total_net_output_bytes"]
            lives = membership.lives()
            assert [(life.info, life.epoch, life.alive) for life in lives] == [
                (info(node), epochs[node], True) for node in (A, B)
            ]
            after: int = command(client, "INFO", "stats")["total_net_output_bytes"]
            return after - before

        few = sent_for_lives()
        tenants = {f"tenant-{i}": TenantStats(tokens=TokenCounts(asked=i)) for i in range(1_000)}
        membership.renew(A, epochs[A], NodeStats(tenants=tenants), lease_ttl_s=60)
        assert sent_for_lives() < few + 1_000
        assert membership.nodes()[0].stats.tenants == tenants


def test_a_life_whose_stats_cannot_be_read_is_known_to_live(
    membership: Membership, redis_client: redis.Redis
) -> None:
    epoch = membership.join(info(A), lease_ttl_s=60)
    command(redis_client, "HSET", membership._keys.node_stats(), A, b"\xc1 of a later version")
    assert membership.readable() == ([], [UnreadNode(A, epoch, is_alive=True)])
    assert [(life.info, life.epoch) for life in membership.lives()] == [(info(A), epoch)]
