"""A tenant's limit against 16 writer processes on a Redis Cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.support.quota_writer import SIZE, TENANT
from tests.support.redis_server import settings_for
from tests.support.redis_topologies import Cluster, running_cluster
from tiered.cluster.agreement import keys_of
from tiered.cluster.allotments import Allotments
from tiered.cluster.audit import Auditor
from tiered.cluster.connection import command, connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.tenants import Tenants
from tiered.tenancy.policy import TenantPolicy

WRITERS = 16
LIMIT = 500 * SIZE + SIZE // 2
PARTITIONS = 8
_BOTH = "return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.mark.parametrize("over_quota", ["refuse", "evict_own"])
def test_sixteen_processes_never_exceed_a_limit_on_a_cluster(
    cluster: Cluster, redis_server: EmbeddedServer, over_quota: str
) -> None:
    with ExitStack() as stack:
        settings = settings_for(redis_server, url=cluster.url, partitions=PARTITIONS)
        client = stack.enter_context(closing(connect(settings, timeout_s=10.0)))
        keys = keys_of(settings)
        policy = {"tenant": TENANT, "redis_limit_bytes": LIMIT, "over_quota": over_quota}
        Tenants(client, keys).create(TenantPolicy.model_validate(policy))
        writers = [_start(stack, settings.model_dump_json(), seed) for seed in range(WRITERS)]
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.close()
            writer.stdin = None  # which communicate() would flush
        samples = quiet = 0
        bounds_before: list[int] = []
        while any(writer.poll() is None for writer in writers):
            held, bounds = [], []
            for part in keys.every():
                flat = command(client, "EVAL", _BOTH, 2, part.usage(), part.limits(), key=part.usage())
                usage, limits = (dict(zip(one[::2], one[1::2], strict=True)) for one in flat)
                held.append(int(usage.get(b"u:red", 0)) + int(usage.get(b"p:red", 0)))
                bounds.append(int(limits[b"red"]))
            assert all(h <= bound for h, bound in zip(held, bounds, strict=True))
            if over_quota == "refuse":  # nothing ever leaves, so what was read first still stands at the end
                assert sum(held) <= LIMIT
            if bounds == bounds_before:  # nothing was on its way from one partition to another
                assert sum(bounds) <= LIMIT
                assert sum(held) <= LIMIT
                quiet += 1
            bounds_before = bounds
            samples += 1
        outputs = [writer.communicate(timeout=10) for writer in writers]
        assert [writer.returncode for writer in writers] == [0] * WRITERS, outputs[0][1]
        assert samples > 20
        assert quiet > 0
        stored = sum(int(out) for out, _ in outputs)
        held_now = RedisLedger(client, keys).total()
        assert held_now.used_bytes <= LIMIT
        if over_quota == "refuse":
            assert stored == 500, "all of the limit could be used"
            assert held_now.used_bytes == 500 * SIZE
        assert Auditor(client, keys).walk().conserved
        Allotments(client, keys).deal()
        assert sum(int(command(client, "HGET", part.limits(), "red")) for part in keys.every()) == LIMIT


def _start(stack: ExitStack, settings: str, seed: int) -> subprocess.Popen[str]:
    command_line = [sys.executable, "-m", "tests.support.quota_writer", settings, str(seed), "40"]
    pipe = subprocess.PIPE
    writer = stack.enter_context(subprocess.Popen(command_line, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
    stack.callback(writer.kill)
    return writer
