"""The scripts raced from threads: what they promise holds at every moment, not only at the end."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import redis

from tests.support.redis_server import block_hash
from tiered.cluster.connection import command
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, RedisUsage, ReserveAnswer, ReserveRequest
from tiered.cluster.membership import Membership
from tiered.cluster.tenants import Tenants
from tiered.tenancy.policy import TenantPolicy
from tiered.types import Epoch, NodeId, NodeInfo, NodeStats, TenantId, TenantStats, TokenCounts

RED, BLUE = TenantId("red"), TenantId("blue")
WRITERS = 8


def test_eight_writers_never_exceed_a_quota_at_any_moment(redis_client: redis.Redis, redis_keys: Keys) -> None:
    size, limit, capacity = 64, 40 * 64 + 13, 60 * 64 + 1
    tenants, ledger = Tenants(redis_client, redis_keys), RedisLedger(redis_client, redis_keys)
    tenants.create(TenantPolicy(tenant="red", redis_limit_bytes=limit))
    tenants.set_capacity(capacity)
    done = threading.Event()
    answers: list[ReserveAnswer] = []

    def write(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(80):
            tenant = choose.choice((RED, BLUE))
            hashes = [block_hash((tenant, choose.randrange(200))) for _ in range(4)]
            asked = [ReserveRequest(h, tenant, size, depth) for depth, h in enumerate(hashes)]
            got = ledger.reserve(asked, ttl_s=30)
            answers.extend(got)
            mine = [(h, tenant, size) for h, answer in zip(hashes, got, strict=True) if answer.reserved]
            for h, _, _ in mine:
                command(redis_client, "SET", redis_keys.block(h), b"x" * size, "NX", "PX", 30_000)
            step = choose.random()
            if step < 0.15:
                ledger.abort([(h, tenant) for h, _, _ in mine])
            else:
                assert all(ledger.commit(mine))
            if step > 0.8:
                ledger.remove(hashes[:1])
            ledger.touch(hashes, tenant)

    def sample() -> int:
        samples = 0
        while not done.is_set():
            fields: dict[bytes, bytes] = command(redis_client, "HGETALL", redis_keys.usage())
            usage = {name.decode(): int(value) for name, value in fields.items()}
            assert usage.get("u:red", 0) + usage.get("p:red", 0) <= limit
            assert usage.get("U", 0) + usage.get("P", 0) <= capacity
            assert usage.get("U", 0) == usage.get("u:red", 0) + usage.get("u:blue", 0)
            assert usage.get("P", 0) == usage.get("p:red", 0) + usage.get("p:blue", 0)
            samples += 1
        return samples

    with ThreadPoolExecutor(WRITERS + 1) as threads:
        sampler = threads.submit(sample)
        writers = [threads.submit(write, seed) for seed in range(WRITERS)]
        try:
            for writer in writers:
                writer.result(60)
        finally:
            done.set()
        assert sampler.result(10) > 50
    assert ReserveAnswer.RESERVED_AFTER_EVICTING_OWN in answers

    usage = ledger.usage()
    for tenant, used in usage.items():
        members: list[bytes] = command(redis_client, "ZRANGE", redis_keys.tenant_blocks(tenant), 0, -1)
        assert used == RedisUsage(size * len(members), 0, len(members))
    every = [block_hash((tenant, i)) for tenant in (RED, BLUE) for i in range(200)]
    stored = command(redis_client, "EXISTS", *map(redis_keys.block, every))
    assert stored * size == ledger.total().used_bytes


def test_a_life_is_folded_once_however_many_retire_it(redis_client: redis.Redis, redis_keys: Keys) -> None:
    membership, node = Membership(redis_client, redis_keys), NodeId("a")
    info = NodeInfo("a", "h", 1, 2, "/s", 3)
    stats = NodeStats(tenants={"red": TenantStats(tokens=TokenCounts(asked=1, hot=1))})
    lives = 20
    for _ in range(lives):
        epoch = membership.join(info, lease_ttl_s=30)
        membership.renew(node, epoch, stats, lease_ttl_s=30)
        command(redis_client, "DEL", redis_keys.node_lease(node))
        with ThreadPoolExecutor(4) as threads:
            retired = list(threads.map(lambda _, life=epoch: membership.retire(node, life), range(4)))
        assert sorted(retired) == [False] * 3 + [True]
    assert membership.retired_tokens() == {RED: TokenCounts(asked=lives, hot=lives)}


def test_racing_lives_of_a_node_leave_the_newest_stamp(redis_client: redis.Redis, redis_keys: Keys) -> None:
    directory, node = Directory(redis_client, redis_keys), NodeId("a")
    hashes = [block_hash(i) for i in range(50)]

    def live(epoch: int) -> None:
        for start in range(0, 50, 10):
            directory.announce(node, Epoch(epoch), stored=hashes[start : start + 10], removed=[])
        if epoch < 6:
            directory.announce(node, Epoch(epoch), stored=[], removed=hashes[:25])
            directory.sweep(node, Epoch(epoch), batch=7)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(live, range(1, 7)))
    assert {found.owners[0].epoch for found in directory.lookup(hashes)} == {6}
    assert all(len(found.owners) == 1 for found in directory.lookup(hashes))
    assert [directory.count(node, Epoch(epoch)) for epoch in range(1, 7)] == [0, 0, 0, 0, 0, 50]
