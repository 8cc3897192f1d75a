"""The two implementations of CacheClient, each behind the same small rig."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.support.content import LAYOUT, SCOPE
from tests.support.redis_server import settings_for
from tests.support.small_cluster import SmallCluster, small_cluster
from tests.support.worker_process import scrape, until
from tiered.client.local import LocalClient
from tiered.client.port import CacheClient
from tiered.cluster.embedded import EmbeddedServer
from tiered.config import PoolSettings
from tiered.core.stats import node_stats
from tiered.tenancy.policy import TenantPolicy
from tiered.tiers.redis.tier import RedisTier
from tiered.types import TenantId, TokenCounts


@dataclass
class Rig:
    """client and other use one hot tier; for LocalClient they are one object, used from two threads or nested."""

    client: CacheClient
    other: CacheClient
    tokens: Callable[[TenantId], TokenCounts]
    set_policy: Callable[[TenantPolicy], None]
    in_redis: Callable[[], int]
    """How many blocks have been stored in Redis so far."""


MakeRig = Callable[..., Rig]


@pytest.fixture(params=["local", "remote"])
def make_rig(request: pytest.FixtureRequest, redis_server: EmbeddedServer) -> Iterator[MakeRig]:
    """make_rig(n_blocks, **pool settings) -> a rig with a pool of that many blocks, empty."""
    with ExitStack() as stack:
        make = _local if request.param == "local" else _remote

        def build(n_blocks: int = 64, **settings: object) -> Rig:
            defaults: dict[str, object] = {"free_target": 0.0}
            return make(stack, redis_server, n_blocks, defaults | settings)

        yield build


def _local(stack: ExitStack, server: EmbeddedServer, n_blocks: int, settings: Mapping[str, object]) -> Rig:
    tier = RedisTier(settings_for(server))
    stack.callback(tier.close)
    pool = PoolSettings.model_validate({"bytes": n_blocks * LAYOUT.block_bytes, **settings})
    client = LocalClient(SCOPE, pool, redis=tier)
    stack.callback(client.close)

    def tokens(tenant: TenantId) -> TokenCounts:
        stats = node_stats(client.core, engines=1, layout="").tenants.get(tenant)
        return TokenCounts() if stats is None else stats.tokens

    def stored() -> int:
        return sum(n for answer, n in tier.counters().puts.items() if answer.value.startswith("stored"))

    return Rig(client, client, tokens, lambda policy: client.set_policies({TenantId(policy.tenant): policy}), stored)


def _remote(stack: ExitStack, server: EmbeddedServer, n_blocks: int, settings: Mapping[str, object]) -> Rig:
    cluster = stack.enter_context(small_cluster(server))
    assignments = [f"pool.{key}={value}" for key, value in settings.items()]
    cluster.start("w1", hot=str(n_blocks * LAYOUT.block_bytes), settings=assignments)
    client = stack.enter_context(cluster.attach("w1"))
    other = stack.enter_context(cluster.attach("w1"))
    port = cluster.node("w1").info.metrics_port

    def tokens(tenant: TenantId) -> TokenCounts:
        counts = {key[1]: int(n) for key, n in scrape(port).items() if key[::2] == ("tiered_tokens_total", tenant)}
        return TokenCounts(asked=sum(counts.values()), **counts)

    def stored() -> int:
        return sum(
            int(n) for key, n in scrape(port).items() if key[0] == "tiered_redis_puts_total" and "stored" in key[1]
        )

    return Rig(client, other, tokens, lambda policy: _tell(cluster, policy), stored)


def _tell(cluster: SmallCluster, policy: TenantPolicy) -> None:
    """Returns when the worker has the policy in force."""
    assert cluster.tenants.create(policy) or cluster.tenants.replace(policy)
    revision = cluster.tenants.revision()
    mark = f'"revision": {revision}'
    until(lambda: mark in cluster.workers["w1"].log, f"revision {revision} is in force")
