"""The Redis tier on one server, behind Sentinel and on a Redis Cluster: what it promises, and what it does when
servers are killed and slots move under it. Real processes; about 25 s in all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from tests.support.redis_container import (
    REDIS_IMAGE,
    VALKEY_IMAGE,
    running_cluster_container,
    running_container,
)
from tests.support.redis_load import BYTES, RED, Load, get, named, put, quick, works_again
from tests.support.redis_server import eventually, settings_for
from tests.support.redis_topologies import Cluster, SentinelSet, running_cluster, running_sentinels
from tiered.cluster.agreement import keys_of, require_agreement
from tiered.cluster.audit import Auditor
from tiered.cluster.connection import Client, command, connect, require_reachable
from tiered.cluster.directory import Directory
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.ledger import RedisLedger, RedisUsage
from tiered.cluster.tenants import Tenants
from tiered.codec.frame import HEADER_BYTES
from tiered.config import RedisSettings
from tiered.errors import ConfigError
from tiered.tenancy.policy import TenantPolicy
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.tier import RedisTier
from tiered.types import Epoch, NodeId, Owner, TenantId

BLUE = TenantId("blue")
VALUE_BYTES = HEADER_BYTES + BYTES
PARTITIONS = 8
BACK_WITHIN_S = 15.0
"""From a master's death to the next stored block: the others' timeout (1 s here), an election, our retries."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared: a test may move its slots, but not kill its servers."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelSet]:
    with running_sentinels(tmp_path_factory.mktemp("sentinels")) as running:
        yield running


@pytest.fixture(scope="module")
def redis_container() -> Iterator[str]:
    with running_container(REDIS_IMAGE) as url:
        yield url


@pytest.fixture(scope="module")
def valkey_container() -> Iterator[str]:
    with running_container(VALKEY_IMAGE) as url:
        yield url


@pytest.fixture(scope="module")
def cluster_container() -> Iterator[str]:
    with running_cluster_container(REDIS_IMAGE) as url:
        yield url


CONTAINERS = {"redis in a container": "redis_container", "valkey in a container": "valkey_container"}


@pytest.fixture(params=["single", "single, partitions", "sentinel", "cluster", *CONTAINERS, "cluster in a container"])
def settings(request: pytest.FixtureRequest, redis_server: EmbeddedServer) -> RedisSettings:
    if request.param == "single":
        return settings_for(redis_server)
    if request.param == "single, partitions":
        return settings_for(redis_server, partitions=4)
    if request.param == "sentinel":
        return settings_for(redis_server, url=request.getfixturevalue("sentinels").url)
    if request.param in CONTAINERS:
        return settings_for(redis_server, url=request.getfixturevalue(CONTAINERS[request.param]))
    if request.param == "cluster in a container":
        url = request.getfixturevalue("cluster_container")
        return settings_for(redis_server, url=url, partitions=PARTITIONS)
    return settings_for(redis_server, url=request.getfixturevalue("cluster").url, partitions=PARTITIONS)


@contextmanager
def opened(settings: RedisSettings) -> Iterator[tuple[RedisTier, Client]]:
    with closing(RedisTier(settings)) as tier, closing(connect(settings, timeout_s=5.0)) as client:
        yield tier, client


# What the tier promises, wherever it is.


def test_blocks_are_stored_found_and_come_back_bit_equal(settings: RedisSettings) -> None:
    with opened(settings) as (tier, client):
        require_reachable(client, settings)
        hashes = named(*range(40))
        assert put(tier, hashes) == [PutAnswer.STORED] * 40
        assert put(tier, hashes[:3]) == [PutAnswer.ALREADY_THERE] * 3
        assert get(tier, [*hashes, *named("other")]) == [True] * 40 + [False]
        assert [found.in_redis for found in tier.lookup([*named("other"), *hashes])] == [False] + [True] * 40
        usage = RedisUsage(40 * VALUE_BYTES, 0, 40)
        assert RedisLedger(client, keys_of(settings)).usage() == {RED: usage}
        assert RedisLedger(client, keys_of(settings)).total() == usage


def test_a_quota_holds_and_all_of_it_can_be_used(settings: RedisSettings) -> None:
    with opened(settings) as (tier, client):
        limit = 20 * VALUE_BYTES + VALUE_BYTES // 2
        Tenants(client, keys_of(settings)).create(
            TenantPolicy(tenant="red", redis_limit_bytes=limit, over_quota="refuse")
        )
        answers: Counter[PutAnswer] = Counter()
        for start in range(0, 40, 4):
            answers.update(put(tier, named(*range(start, start + 4))))
        assert answers == {PutAnswer.STORED: 20, PutAnswer.REFUSED_QUOTA: 20}
        assert RedisLedger(client, keys_of(settings)).usage() == {RED: RedisUsage(20 * VALUE_BYTES, 0, 20)}
        assert put(tier, named("blue"), BLUE) == [PutAnswer.STORED]


def test_who_evicts_its_own_always_finds_room_below_its_limit(settings: RedisSettings) -> None:
    with opened(settings) as (tier, client):
        limit = 5 * VALUE_BYTES
        Tenants(client, keys_of(settings)).create(TenantPolicy(tenant="red", redis_limit_bytes=limit))
        stored = {PutAnswer.STORED, PutAnswer.STORED_AFTER_EVICTING_OWN}
        for name in range(40):
            assert put(tier, named(name))[0] in stored, name
            held = RedisLedger(client, keys_of(settings)).total()
            assert held.used_bytes + held.pending_bytes <= limit
        assert get(tier, named(39)) == [True]
        assert sum(get(tier, named(*range(40)))) >= 4


def test_clearing_a_tenant_leaves_nothing_of_it_anywhere(settings: RedisSettings) -> None:
    with opened(settings) as (tier, client):
        keys = keys_of(settings)
        ledger = RedisLedger(client, keys)
        put(tier, named(*range(20)))
        put(tier, named(*range(100, 110)), BLUE)
        assert ledger.clear(RED) == 20
        assert ledger.usage() == {BLUE: RedisUsage(10 * VALUE_BYTES, 0, 10)}
        assert not any(get(tier, named(*range(20))))
        assert ledger.expire(BLUE, idle_s=0) == 10
        assert ledger.total() == RedisUsage(0, 0, 0)


def test_an_audit_finds_the_books_true_and_settles_what_is_lost(settings: RedisSettings) -> None:
    with opened(settings) as (tier, client):
        keys = keys_of(settings)
        hashes = named(*range(30))
        put(tier, hashes)
        auditor = Auditor(client, keys)
        found = auditor.walk()
        assert (found.conserved, found.blocks, found.stored_bytes) == (True, 30, 30 * VALUE_BYTES)
        assert found.orphans == 0
        lost = hashes[29]
        assert command(client, "DEL", keys.of(lost).block(lost)) == 1
        assert auditor.walk().lost == 1
        found = auditor.walk()
        assert (found.conserved, found.blocks, found.lost) == (True, 29, 0)


def test_an_orphan_is_one_wherever_its_parent_would_be(settings: RedisSettings) -> None:
    with opened(settings) as (tier, client):
        hashes = named(*range(12))
        put(tier, hashes)
        RedisLedger(client, keys_of(settings)).remove(hashes[3:4])
        auditor = Auditor(client, keys_of(settings))
        assert [auditor.walk().orphans for _ in range(2)] == [1, 1]
        assert get(tier, hashes[:6]) == [True, True, True, False, False, True]


def test_whereabouts_are_announced_swept_and_counted(settings: RedisSettings) -> None:
    with opened(settings) as (_, client):
        directory, node, hashes = Directory(client, keys_of(settings)), NodeId("n"), named(*range(50))
        directory.announce(node, Epoch(1), stored=hashes, removed=())
        directory.announce(node, Epoch(1), stored=(), removed=hashes[:10])
        assert directory.count(node, Epoch(1)) == 40
        owned = [found.owners for found in directory.lookup(hashes)]
        assert owned == [()] * 10 + [(Owner(node, Epoch(1)),)] * 40
        assert directory.sweep(node, Epoch(1), batch=3) == 40
        assert directory.count(node, Epoch(1)) == 0


def test_two_namespaces_on_the_same_servers_know_nothing_of_each_other(settings: RedisSettings) -> None:
    other = settings.model_copy(update={"namespace": f"{settings.namespace}x"})
    with opened(settings) as (tier, client), opened(other) as (other_tier, _):
        put(tier, named(*range(5)))
        assert not any(get(other_tier, named(*range(5))))
        assert put(other_tier, named(*range(5))) == [PutAnswer.STORED] * 5
        RedisLedger(client, keys_of(settings)).clear(RED)
        assert all(get(other_tier, named(*range(5))))
        found = Auditor(client, keys_of(settings)).walk()
        assert (found.blocks, found.stray) == (0, 0)


def test_another_number_of_partitions_is_refused_with_the_fix(settings: RedisSettings) -> None:
    with opened(settings) as (_, client):
        require_agreement(client, settings)
        require_agreement(client, settings)
        other = settings.model_copy(update={"partitions": 2 * settings.partitions})
        with pytest.raises(ConfigError, match=f"set redis.partitions to {settings.partitions}") as refused:
            require_agreement(client, other)
        assert refused.value.field == "redis.partitions"


def test_a_server_that_is_only_part_of_something_is_refused_with_the_right_url(
    cluster: Cluster, sentinels: SentinelSet, redis_server: EmbeddedServer
) -> None:
    for server, fix in (
        (cluster.servers[0], r"write redis\+cluster://"),
        (sentinels.servers[1], r"name its master, or its Sentinels with redis\+sentinel://"),
    ):
        settings = [
            settings_for(redis_server, url=f"redis://127.0.0.1:{server.port}", namespace=f"n{i}") for i in range(12)
        ]
        refusals = []
        for one in settings:  # a third of all namespaces is even the right server's
            with closing(connect(one, timeout_s=5.0)) as client:
                try:
                    require_agreement(client, one)
                except ConfigError as error:
                    refusals.append(str(error))
        assert refusals
        assert all(re.search(fix, refusal) for refusal in refusals)


# What it does when servers die and slots move.


def test_a_cluster_goes_on_after_a_master_is_killed_under_load(tmp_path: Path, redis_server: EmbeddedServer) -> None:
    with running_cluster(tmp_path) as own:
        settings = quick(settings_for(redis_server, url=own.url, partitions=PARTITIONS))
        with Load(settings) as load:
            eventually(lambda: load.stored > 100 and load.hits > 100)
            own.masters()[0].kill()
            stored, hits = load.stored, load.hits
            eventually(works_again(settings), within_s=BACK_WITHIN_S)
            eventually(lambda: load.stored > stored + 100 and load.hits > hits + 100)
        assert len(own.masters()) == 3
        with closing(connect(settings, timeout_s=5.0)) as client:
            auditor = Auditor(client, keys_of(settings))
            auditor.walk()  # a failover loses what its master had not yet told its replica
            eventually(lambda: auditor.walk().conserved is True, within_s=40)


def test_a_service_goes_on_after_its_master_is_killed_under_load(
    tmp_path: Path, redis_server: EmbeddedServer
) -> None:
    with running_sentinels(tmp_path) as own:
        settings = quick(settings_for(redis_server, url=own.url))
        with Load(settings) as load:
            eventually(lambda: load.stored > 100 and load.hits > 100)
            own.sentinels[0].kill()
            old = own.master()
            old.kill()
            stored, hits = load.stored, load.hits
            eventually(works_again(settings), within_s=BACK_WITHIN_S)
            eventually(lambda: load.stored > stored + 100 and load.hits > hits + 100)
        assert own.master() is not old


def test_a_slot_moves_under_load(cluster: Cluster, redis_server: EmbeddedServer) -> None:
    settings = quick(settings_for(redis_server, url=cluster.url, partitions=PARTITIONS))
    keys = keys_of(settings)
    with ExitStack() as stack:
        load = stack.enter_context(Load(settings))
        tier, client = stack.enter_context(opened(settings))
        part = keys.every()[3]
        inside = [h for h in named(*range(400)) if keys.of(h) is part][:20]
        assert put(tier, inside) == [PutAnswer.STORED] * len(inside)
        slot = key_slot(part.usage())
        target = next(server for server in cluster.masters() if server is not cluster.owner_of(part.usage()))
        source = cluster.begin_move(slot, to=target)
        assert all(get(tier, inside))
        cluster.move_keys(slot, source=source, to=target, at_most=60)
        assert all(get(tier, inside)), "each value is read where it is, or was still"
        assert all(found.in_redis for found in tier.lookup(inside)), "and so is each record"
        assert PutAnswer.FAILED in put(tier, [h for h in named(*range(400, 800)) if keys.of(h) is part][:5])
        cluster.move_keys(slot, source=source, to=target)
        cluster.end_move(slot, source=source, to=target)
        assert cluster.owner_of(part.usage()) is target
        eventually(works_again(settings), within_s=BACK_WITHIN_S)
        assert all(get(tier, inside))
        stored, hits = load.stored, load.hits
        eventually(lambda: load.stored > stored + 100 and load.hits > hits + 100)
        stack.pop_all().close()
    with closing(connect(settings, timeout_s=5.0)) as client:
        eventually(lambda: Auditor(client, keys).walk().conserved is True, within_s=40)


def test_a_slot_that_moves_whole_is_never_out_of_service(cluster: Cluster, redis_server: EmbeddedServer) -> None:
    settings = quick(settings_for(redis_server, url=cluster.url, partitions=PARTITIONS))
    part = keys_of(settings).every()[5]
    slot = key_slot(part.usage())
    with opened(settings) as (tier, _):
        hashes = [h for h in named(*range(2_000)) if keys_of(settings).of(h) is part]
        assert put(tier, hashes[:100]) == [PutAnswer.STORED] * 100
        source = cluster.owner_of(part.usage())
        target = next(server for server in cluster.masters() if server is not source)
        try:
            source.run("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.run("CLUSTER", "MYID"))
        except redis.ResponseError as error:
            pytest.skip(f"this server moves keys one by one: {error}")
        fresh = iter(hashes[100:])
        for _ in range(100):
            assert put(tier, [next(fresh)]) == [PutAnswer.STORED]
            assert all(get(tier, hashes[:8]))
            if cluster.owner_of(part.usage()) is target:
                break
        assert cluster.owner_of(part.usage()) is target
        assert put(tier, [next(fresh)]) == [PutAnswer.STORED]
        assert all(get(tier, hashes[:100]))
