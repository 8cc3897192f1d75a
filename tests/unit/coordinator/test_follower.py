"""The mirror follows a real server: from nothing, through what is missed, through a restart, to what is true."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from coordinator.view import follower as following
from coordinator.view.follower import CHECK_INTERVAL_S, STORED_INTERVAL_S, Follower
from coordinator.view.mirror import REDIS, REDIS_BIT, Life, Mirror
from coordinator.view.snapshot import ClusterView, Readings, assemble
from tests.support.redis_server import block_hash, settings_for
from tests.unit.coordinator.builders import node_info
from tiered.clock import ManualClock
from tiered.cluster.census import Census
from tiered.cluster.changes import Changes
from tiered.cluster.connection import command, connect
from tiered.cluster.directory import Directory
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.cluster.membership import Membership
from tiered.errors import TierError, TierUnavailable
from tiered.types import BlockHash, Epoch, NodeId, TenantId

H = [block_hash(i) for i in range(600)]
A, B = NodeId("a"), NodeId("b")
RED, BLUE = TenantId("red"), TenantId("blue")


@dataclass
class Cluster:
    client: redis.Redis
    keys: Keys
    clock: ManualClock = field(default_factory=ManualClock)
    view: ClusterView = field(default_factory=ClusterView)
    readings: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.membership = Membership(self.client, self.keys)
        self.directory = Directory(self.client, self.keys)
        self.ledger = RedisLedger(self.client, self.keys)
        self.follower = self.new_follower()
        self.mirror = self.follower.mirror

    def new_follower(self) -> Follower:
        mirror = Mirror(self.keys.partitions)
        changes, census = Changes(self.client, self.keys), Census(self.client, self.keys)
        return Follower(changes, census, mirror, lambda: self.view, self.clock)

    def join(self, node: NodeId) -> Life:
        return Life(node, self.membership.join(node_info(node), lease_ttl_s=60.0))

    def look(self) -> None:
        nodes = tuple(self.membership.nodes())
        self.view = assemble(Readings(nodes=nodes), taken_at=float(next(self.readings)))

    def rounds(self, n: int = 3) -> None:
        """Enough of them for a load, what follows it, and a check."""
        self.look()
        for _ in range(n):
            self.follower.round()

    def store(self, tenant: TenantId, *hashes: BlockHash) -> None:
        self.ledger.reserve([ReserveRequest(h, tenant, 5, 0) for h in hashes], ttl_s=30)
        for one in hashes:
            command(self.client, "SET", self.keys.of(one).block(one), b"12345")
        assert all(self.ledger.commit([(h, tenant, 5) for h in hashes]))

    def held(self, life: Life) -> set[int]:
        bit = REDIS_BIT if life == REDIS else self.mirror.bit(*life)
        return {i for i, mask in enumerate(self.mirror.masks(H)) if mask & bit}


@pytest.fixture(params=[1, 4], ids=["one partition", "four partitions"])
def cluster(redis_client: redis.Redis, redis_keys: Keys, request: pytest.FixtureRequest) -> Cluster:
    return Cluster(redis_client, Keys(redis_keys.namespace, partitions=request.param))


def test_what_was_there_before_is_loaded_and_what_comes_is_followed(cluster: Cluster) -> None:
    a = cluster.join(A)
    cluster.directory.announce(*a, stored=H[:300], removed=[])
    cluster.store(RED, *H[200:230])
    cluster.rounds()
    assert cluster.held(a) == set(range(300))
    assert cluster.held(REDIS) == set(range(200, 230))
    b = cluster.join(B)
    cluster.directory.announce(*b, stored=H[250:400], removed=[])
    cluster.directory.announce(*a, stored=[], removed=H[:100])
    cluster.ledger.remove(H[200:210])
    cluster.rounds(1)
    assert cluster.held(a) == set(range(100, 300))
    assert cluster.held(b) == set(range(250, 400))
    assert cluster.held(REDIS) == set(range(210, 230))
    facts = cluster.follower.facts
    assert (facts.counts.blocks, facts.counts.in_redis, facts.loads, facts.repairs) == (300, 20, 0, 0)


def test_before_the_first_load_nothing_is_claimed(cluster: Cluster) -> None:
    facts = cluster.follower.facts
    assert facts.lag_s is None
    assert facts.counts.unloaded == cluster.keys.partitions
    cluster.rounds()
    assert cluster.follower.facts.counts.unloaded == 0
    assert cluster.follower.facts.lag_s == 0.0


def test_the_lag_grows_while_nobody_follows(cluster: Cluster) -> None:
    cluster.rounds()
    cluster.clock.advance(7.0)
    assert cluster.follower.facts.lag_s == 7.0
    cluster.rounds(1)
    assert cluster.follower.facts.lag_s == 0.0


def test_a_life_that_joined_between_the_view_and_the_load_is_found(cluster: Cluster) -> None:
    cluster.look()
    a = cluster.join(A)
    cluster.directory.announce(*a, stored=H[:50], removed=[])
    cluster.follower.round()  # loads, not knowing of it
    assert cluster.held(a) == set()
    cluster.rounds()
    assert cluster.held(a) == set(range(50))


def test_a_node_that_joins_again_begins_with_nothing(cluster: Cluster) -> None:
    elder = cluster.join(A)
    cluster.directory.announce(*elder, stored=H[:50], removed=[])
    cluster.rounds()
    younger = cluster.join(A)
    cluster.directory.announce(*elder, stored=H[50:60], removed=[])  # late
    cluster.directory.announce(*younger, stored=H[:5], removed=[])
    cluster.rounds()
    assert cluster.mirror.bit(*elder) == 0
    assert cluster.held(younger) == set(range(5))
    assert cluster.mirror.counts.blocks == 5
    assert cluster.mirror.counts.ended == 0


def test_a_node_that_left_is_forgotten(cluster: Cluster) -> None:
    a, b = cluster.join(A), cluster.join(B)
    cluster.directory.announce(*a, stored=H[:50], removed=[])
    cluster.directory.announce(*b, stored=H[40:60], removed=[])
    cluster.rounds()
    cluster.membership.leave(*a)
    cluster.rounds()
    assert cluster.mirror.lives.keys() == {b}
    assert cluster.mirror.counts.blocks == 20


def test_a_reader_that_fell_behind_the_stream_loads_anew(cluster: Cluster) -> None:
    a = cluster.join(A)
    cluster.directory.announce(*a, stored=H[:50], removed=[])
    cluster.rounds()
    for i in range(50, 90):
        cluster.directory.announce(*a, stored=[H[i]], removed=[H[i - 50]])
    for part in cluster.keys.every():
        command(cluster.client, "XTRIM", part.changes(), "MAXLEN", 1)
    cluster.rounds()
    assert cluster.held(a) == set(range(40, 90))
    assert 1 <= cluster.follower.facts.loads <= cluster.keys.partitions


def test_a_long_backlog_takes_more_than_one_round_and_ends_right(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "READS_PER_ROUND", 2)
    monkeypatch.setattr(following, "ENTRIES_PER_READ", 3)
    a = cluster.join(A)
    cluster.rounds()
    for i in range(60):
        cluster.directory.announce(*a, stored=[H[i]], removed=[])
    cluster.clock.advance(1.0)
    cluster.follower.round()
    assert cluster.held(a) < set(range(60))
    assert cluster.follower.facts.lag_s == 1.0, "not level yet"
    cluster.rounds(12)
    assert cluster.held(a) == set(range(60))
    assert cluster.follower.facts.loads == 0


def test_a_set_that_differs_from_what_was_followed_is_put_right(cluster: Cluster) -> None:
    """Whatever the reason: here members are taken away behind the stream's back."""
    a = cluster.join(A)
    cluster.directory.announce(*a, stored=H[:50], removed=[])
    cluster.rounds()
    for part in cluster.keys.every():
        members = command(cluster.client, "SMEMBERS", part.node_blocks(*a))
        lost = [member for member in members if member in H[:20]]
        if lost:
            command(cluster.client, "SREM", part.node_blocks(*a), *lost)
    cluster.rounds()
    assert cluster.held(a) == set(range(50)), "not looked at yet"
    cluster.clock.advance(CHECK_INTERVAL_S)
    cluster.rounds()
    assert cluster.held(a) == set(range(20, 50))
    assert cluster.follower.facts.repairs >= 1


def test_what_the_tier_lost_without_saying_so_is_put_right(cluster: Cluster) -> None:
    cluster.store(RED, *H[:20])
    cluster.rounds()
    for part in cluster.keys.every():
        command(cluster.client, "ZREM", part.tenant_blocks(RED), *H[:10])
    cluster.clock.advance(CHECK_INTERVAL_S)
    cluster.rounds()
    assert cluster.held(REDIS) == set(range(10, 20))


def test_blocks_that_tenants_share_are_no_reason_to_load_again_and_again(cluster: Cluster) -> None:
    cluster.store(RED, *H[:20])
    cluster.rounds()
    cluster.store(BLUE, *H[:20])  # the same values, from now on charged to both
    repairs = []
    for _ in range(4):
        cluster.clock.advance(CHECK_INTERVAL_S)
        cluster.rounds()
        repairs.append(cluster.follower.facts.repairs)
    assert len(set(repairs)) == 1
    cluster.clock.advance(STORED_INTERVAL_S)
    cluster.rounds()
    assert cluster.held(REDIS) == set(range(20))


def test_a_server_that_restarts_empty_is_followed_from_its_new_beginning(
    private_redis_server: EmbeddedServer, tmp_path: Path
) -> None:
    settings = settings_for(private_redis_server, control_timeout_s=1.0)
    with closing(connect(settings, timeout_s=1.0)) as client:
        cluster = Cluster(client, Keys(settings.namespace))
        a = cluster.join(A)
        cluster.directory.announce(*a, stored=H[:50], removed=[])
        cluster.store(RED, *H[:10])
        cluster.rounds()
        assert len(cluster.held(a)) == 50
        private_redis_server.kill()
        with pytest.raises(TierError):
            cluster.follower.round()
        assert len(cluster.held(a)) == 50, "what it knew is still the best it knows"
        with EmbeddedServer.start(tmp_path / "redis", maxmemory_bytes=None):
            b = cluster.join(B)
            cluster.directory.announce(*b, stored=H[100:130], removed=[])
            cluster.follower.round()  # the view is still that of before
            cluster.rounds()
            again = cluster.join(A)
            cluster.directory.announce(*again, stored=H[130:140], removed=[])
            cluster.rounds()
            assert cluster.held(b) == set(range(100, 130))
            assert cluster.held(again) == set(range(130, 140))
            assert cluster.held(REDIS) == set()
            assert cluster.mirror.counts.blocks == 40


def test_a_view_that_is_stale_ends_no_life(cluster: Cluster) -> None:
    a = cluster.join(A)
    cluster.directory.announce(*a, stored=H[:5], removed=[])
    cluster.rounds()
    cluster.view = ClusterView()
    cluster.follower.round()
    assert cluster.held(a) == set(range(5))


def test_a_census_is_taken_at_one_point_of_the_stream_or_not_at_all(cluster: Cluster) -> None:
    a = cluster.join(A)
    cluster.directory.announce(*a, stored=H[:5], removed=[])
    part = cluster.keys.of(H[0])
    census, positions = Census(cluster.client, cluster.keys), Changes(cluster.client, cluster.keys).positions()
    count = census.count(part.partition, positions[part.partition], [a, (B, Epoch(9))])
    assert count is not None
    assert count.lives[1] == 0
    assert 1 <= count.lives[0] <= 5
    assert census.count(part.partition, positions[part.partition] + 1, [a]) is None


def test_a_partition_that_does_not_answer_holds_up_no_other(
    redis_client: redis.Redis, redis_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(redis_client, Keys(redis_keys.namespace, partitions=8))
    real, silent = Census.tenants, {0, 1, 2, 3, 4}

    def tenants(census: Census, partition: int) -> list[TenantId]:
        if partition in silent:
            raise TierUnavailable(f"partition {partition} is silent")
        return real(census, partition)

    monkeypatch.setattr(Census, "tenants", tenants)
    a = cluster.join(A)
    cluster.directory.announce(*a, stored=H[:100], removed=[])
    cluster.look()
    for _ in range(12):
        with pytest.raises(TierError):
            cluster.follower.round()
    cluster.directory.announce(*a, stored=H[100:200], removed=[])
    with pytest.raises(TierError):
        cluster.follower.round()
    answering = {i for i in range(200) if cluster.keys.of(H[i]).partition not in silent}
    assert cluster.held(a) == answering
    assert cluster.follower.facts.lag_s is None, "it is not level while some is missing"
    silent.clear()
    cluster.rounds()
    assert cluster.held(a) == set(range(200))
