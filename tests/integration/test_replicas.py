"""What a tenant with two copies has in Redis, Redis' replicas have too, and whether they do is counted, not hoped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from coordinator.leader.seconds import Seconds
from tests.support.content import SCOPE, right_bytes
from tests.support.redis_load import BYTES, RED, SCOPE_ID, get, named, put
from tests.support.redis_server import eventually, settings_for
from tests.support.redis_topologies import Cluster, SentinelSet, Server, running_cluster, running_sentinels
from tiered.clock import SystemClock
from tiered.cluster.agreement import keys_of
from tiered.cluster.connection import connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.replicas import Replicas
from tiered.cluster.tenants import Tenants
from tiered.config import RedisSettings
from tiered.tenancy.policy import TenantPolicy
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.tier import RedisTier, ToStore
from tiered.types import BlockHash

N_BLOCKS = 32


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[SentinelSet]:
    with running_sentinels(tmp_path) as running:
        yield running


def put_twice(tier: RedisTier, hashes: Sequence[BlockHash]) -> list[PutAnswer]:
    """For a tenant that asks for two copies."""
    blocks = [
        ToStore(h, RED, depth, memoryview(right_bytes(h, BYTES)), None, copies=2) for depth, h in enumerate(hashes)
    ]
    return tier.put(blocks, scope_id=SCOPE_ID, layout=SCOPE.layout)


@contextmanager
def stopped(servers: Sequence[Server]) -> Iterator[None]:
    for server in servers:
        os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for server in servers:
            os.kill(server.process.pid, signal.SIGCONT)


def settings_of(server: EmbeddedServer, running: SentinelSet | Cluster, **changes: object) -> RedisSettings:
    return settings_for(server, url=running.url, **changes)


def test_what_a_replica_had_is_there_after_the_master_was_killed_at_once(
    sentinels: SentinelSet, redis_server: EmbeddedServer
) -> None:
    settings, hashes = settings_of(redis_server, sentinels), named(*range(N_BLOCKS))
    with closing(RedisTier(settings)) as tier:
        for start in range(0, N_BLOCKS, 8):
            answers = put_twice(tier, hashes[start : start + 8])
        master = sentinels.master()
        master.kill()
        assert set(answers) == {PutAnswer.STORED}
        assert tier.counters().replicated == {"yes": N_BLOCKS}
        eventually(lambda: sentinels.master() is not master, within_s=20)
        eventually(lambda: get(tier, hashes) == [True] * N_BLOCKS, within_s=20)


def test_a_replica_that_lags_is_waited_for_a_little_and_not_taken_for_one_that_has_it(
    sentinels: SentinelSet, redis_server: EmbeddedServer
) -> None:
    settings = settings_of(redis_server, sentinels)
    with closing(RedisTier(settings)) as tier:
        assert put_twice(tier, named("warm")) == [PutAnswer.STORED]
        replicas = [server for server in sentinels.servers if server is not sentinels.master()]
        with stopped(replicas):
            began = time.monotonic()
            answers = [put_twice(tier, named(("lags", i))) for i in range(6)]
            took_s = time.monotonic() - began
        assert answers == [[PutAnswer.STORED]] * 6
        assert tier.counters().replicated == {"yes": 1, "late": 6}
        assert took_s < 0.9  # one of them waits its 100 ms, the others only look


def test_who_asks_for_one_copy_waits_for_no_replica(sentinels: SentinelSet, redis_server: EmbeddedServer) -> None:
    with closing(RedisTier(settings_of(redis_server, sentinels))) as tier:
        assert put(tier, named("once")) == [PutAnswer.STORED]
        assert tier.counters().replicated == {}


def test_where_replicas_have_it_a_sweep_notes_nothing_as_lost(
    sentinels: SentinelSet, redis_server: EmbeddedServer
) -> None:
    for settings, n_replicas in ((settings_of(redis_server, sentinels), 2), (settings_for(redis_server), 0)):
        keys = keys_of(settings)
        with closing(connect(settings, timeout_s=5.0)) as client:
            tenants, replicas = Tenants(client, keys), Replicas(client, keys, SystemClock(), timeout_s=5.0)
            tenants.create(TenantPolicy(tenant=RED, copies=2))
            assert replicas.fewest() == n_replicas
            assert Seconds(tenants, replicas).asked().asked_by(RED) is (n_replicas == 0)


def test_a_server_without_replicas_says_so(redis_server: EmbeddedServer) -> None:
    with closing(RedisTier(settings_for(redis_server))) as tier:
        assert put_twice(tier, named("alone", "too")) == [PutAnswer.STORED] * 2
        assert tier.counters().replicated == {"no replica": 2}


def test_on_a_cluster_the_replica_of_each_master_concerned_is_asked(
    tmp_path: Path, redis_server: EmbeddedServer
) -> None:
    with running_cluster(tmp_path) as cluster:
        settings = settings_of(redis_server, cluster, partitions=8)
        with closing(RedisTier(settings)) as tier:
            assert set(put_twice(tier, named(*range(N_BLOCKS)))) == {PutAnswer.STORED}
            assert tier.counters().replicated == {"yes": N_BLOCKS}
            masters = cluster.masters()
            one_replica = next(server for server in cluster.servers if server not in masters)
            with stopped([one_replica]):
                assert set(put_twice(tier, named(*range(N_BLOCKS, 2 * N_BLOCKS)))) == {PutAnswer.STORED}
            assert tier.counters().replicated["late"] == N_BLOCKS
